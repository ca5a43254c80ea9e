"""Stage programs: ingest, curate, train, evaluate, propose. Each reads artifacts and writes artifacts."""
