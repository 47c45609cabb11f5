"""What a fleet is, where its engines go, and whether they fit: read, placed and summed without asking anybody."""
