"""SFT and GRPO with TRL, from the base model every time."""
