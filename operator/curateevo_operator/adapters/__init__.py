"""The cluster behind plain calls: objects as dicts, errors as those of curateevo.api.errors."""
