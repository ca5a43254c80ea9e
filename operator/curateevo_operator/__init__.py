"""The kopf shell around the decision core. It holds no code yet: today the loop runs on one machine."""
