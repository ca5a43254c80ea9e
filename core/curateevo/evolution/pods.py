"""What a pod gives a stage program: variables and paths. The operator writes them, the programs read them."""

from __future__ import annotations

SCRATCH_VARIABLE = "CURATEEVO_SCRATCH"
"""A folder for large files that need not outlive the program."""
ENDPOINTS_VARIABLE = "CURATEEVO_ENDPOINTS"
"""evaluate: a JSON object from the subject's name to the base URL, with its /v1, of the server of its model."""
SERVE_WAIT_VARIABLE = "CURATEEVO_SERVE_WAIT_SECONDS"
"""evaluate: how long the next of those servers may take until it answers."""
SERVE_GPUS_VARIABLE = "CURATEEVO_SERVE_GPUS"
"""evaluate: how many GPUs each of those servers holds."""
HUB_TOKEN_VARIABLE = "HF_TOKEN"
"""The model hub's token, from the Secret that `model.tokenSecretRef` names."""
LLM_KEY_VARIABLE = "CURATEEVO_LLM_API_KEY"
"""propose: the key of the endpoint in `proposer.llm`."""
REWRITE_KEY_VARIABLE = "CURATEEVO_REWRITE_API_KEY"
"""curate: the key of the endpoint in `augmentation.llm`; a key is sent to its own server only."""
CLAIM_ROOT = "/mnt/claims"
"""Where persistent volume claims are mounted: pvc://claim/path is CLAIM_ROOT/claim/path."""
SERVE_PORT = 8000
DEFAULT_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # Large tensors come and go: keep their memory instead of giving it back (an evaluation takes a tenth less time).
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
    "MALLOC_TOP_PAD_": str(128 << 20),
}
"""What stage programs get unless the user says otherwise."""
