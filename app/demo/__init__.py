"""What a newcomer sees first: the demo model and the profile it is served with."""
