"""What a rollout is and what follows in it: pure, with the time as an argument. `app.services.rollouts` acts."""
