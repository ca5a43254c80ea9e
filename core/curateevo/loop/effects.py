"""Effects on the store that every shell has: the initial policy, decisions, the champion, the end of artifacts."""

from __future__ import annotations

from curateevo.api.base import canonical_json
from curateevo.evolution.decision import DeleteArtifacts, MoveChampion, WriteDecision
from curateevo.evolution.names import champion_key, decision_key, initial_policy_key
from curateevo.policy.source import check_static
from curateevo.store.protocol import Store

StoreAction = WriteDecision | MoveChampion | DeleteArtifacts


def apply_to_store(store: Store, uid: str, action: StoreAction) -> None:
    """Apply one action. Raises Conflict when another writer moved the champion first: look again, then plan again."""
    match action:
        case WriteDecision():
            data = canonical_json(action.record.to_wire()).encode()
            store.put_once(decision_key(uid, action.record.number), data)
        case MoveChampion():
            store.swap(champion_key(uid), canonical_json(action.pointer.to_wire()).encode(), action.tag)
        case DeleteArtifacts():
            store.delete(action.prefix)


def store_initial_policy(store: Store, uid: str, source: str) -> None:
    """Put version 0's policy into the store, once. Raises PolicyRejected when it breaks a static rule."""
    if store.get(initial_policy_key(uid)) is None:
        check_static(source)
        store.put_once(initial_policy_key(uid), source.encode())
