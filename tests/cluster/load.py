"""Hands images from buildah's storage to a node's containerd: load.py STORAGE DIR [--layer IMAGE=FOLDER:PATH] IMAGE...

containerd takes images as archives: packing, hashing and unpacking gigabytes takes minutes, of files that are on this
disk already. So each layer's snapshot is made of hard links to the files in buildah's storage, under the name that
containerd looks for, and the image's layers are a few bytes that stand for what is there. `--layer` says that the top
layer of IMAGE is what FOLDER holds, at PATH.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import json
import re
import subprocess
import tarfile
from pathlib import Path
from typing import Any

ROOT_LABEL = "containerd.io/gc.root"
LAYER = "application/vnd.oci.image.layer.v1.tar"
CONFIG = "application/vnd.oci.image.config.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


class Storage:
    """Images in a folder of containers/storage."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.images = {
            name: image
            for image in json.loads((folder / "overlay-images/images.json").read_text())
            for name in image.get("names") or ()
        }
        self.by_id = {layer["id"]: layer for layer in json.loads((folder / "overlay-layers/layers.json").read_text())}

    def layers(self, name: str) -> list[dict[str, Any]]:
        """Of the image, lowest first."""
        found, layer = [], self.images[name]["layer"]
        while layer:
            found.append(self.by_id[layer])
            layer = self.by_id[layer].get("parent")
        return found[::-1]

    def files(self, layer: dict[str, Any]) -> Path:
        return self.folder / "overlay" / str(layer["id"]) / "diff"

    def config(self, name: str) -> dict[str, Any]:
        image = self.images[name]
        digest = "sha256:" + image["id"]
        file = "=" + base64.b64encode(digest.encode()).decode()
        config: dict[str, Any] = json.loads((self.folder / "overlay-images" / image["id"] / file).read_bytes())
        return config


class Containerd:
    """The images and snapshots of a node."""

    def __init__(self, folder: Path) -> None:
        self.command = ["ctr", "--address", str(folder / "containerd.sock"), "--namespace", "k8s.io"]

    def __call__(self, *arguments: str, data: bytes | None = None) -> str:
        done = subprocess.run([*self.command, *arguments], input=data, capture_output=True, check=False, timeout=300)
        if done.returncode:
            raise SystemExit(f"ctr {' '.join(arguments)}: {done.stderr.decode(errors='replace')}")
        return done.stdout.decode()

    def snapshots(self) -> set[str]:
        return {line.split()[0] for line in self("snapshots", "list").splitlines()[1:] if line.strip()}

    def add_snapshot(self, name: str, parent: str | None, folder: Path, path: str) -> None:
        active = f"load-{name}"
        self("snapshots", "prepare", active, *([parent] if parent else []))
        mount = self("snapshots", "mounts", "/unused", active)
        upper = re.search(r"upperdir=([^,\s]+)", mount) or re.search(r"-t bind (\S+)", mount)
        assert upper, mount
        target = Path(upper[1]) / path
        target.mkdir(parents=True, exist_ok=True)
        linked = ["--link"] if target.stat().st_dev == folder.stat().st_dev else []
        copy = ["cp", "--archive", *linked, f"{folder}/.", str(target)]
        done = subprocess.run(copy, capture_output=True, text=True, check=False, timeout=900)
        if done.returncode:
            raise SystemExit(f"{' '.join(copy)}: {done.stderr[:1000]}")
        self("snapshots", "commit", name, active)

    def add_image(self, name: str, config: dict[str, Any], stand_ins: list[bytes]) -> None:
        blobs: dict[str, bytes] = {}

        def blob(kind: str, content: bytes) -> dict[str, Any]:
            digest = hashlib.sha256(content).hexdigest()
            blobs[f"blobs/sha256/{digest}"] = content
            return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}

        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": blob(CONFIG, json.dumps(config).encode()),
            "layers": [blob(LAYER, content) for content in stand_ins],
        }
        entry = blob(MANIFEST, json.dumps(manifest).encode()) | {"annotations": {"io.containerd.image.name": name}}
        files = blobs | {
            "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
            "index.json": json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode(),
        }
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            for path, content in files.items():
                info = tarfile.TarInfo(path)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        self("images", "import", "-", data=archive.getvalue())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("storage", type=Path)
    parser.add_argument("node", type=Path, metavar="DIR")
    parser.add_argument("images", nargs="+")
    parser.add_argument("--layer", action="append", default=[], metavar="IMAGE=FOLDER:PATH")
    arguments = parser.parse_args()

    storage, node = Storage(arguments.storage), Containerd(arguments.node)
    elsewhere: dict[str, tuple[Path, str]] = {}
    for said in arguments.layer:
        image, _, place = said.partition("=")
        folder, _, path = place.partition(":")
        elsewhere[storage.layers(image)[-1]["id"]] = (Path(folder), path)

    there, made = node.snapshots(), []
    for name in arguments.images:
        config, parent, stand_ins = storage.config(name), None, []
        for layer in storage.layers(name):
            digest = layer["diff-digest"]
            chain = digest if parent is None else f"sha256:{hashlib.sha256(f'{parent} {digest}'.encode()).hexdigest()}"
            if chain not in there:
                folder, path = elsewhere.get(layer["id"], (storage.files(layer), ""))
                node.add_snapshot(chain, parent, folder, path)
                there.add(chain)
                made.append(chain)
            stand_ins.append(f"stands for {chain}, which was not unpacked from here".encode())
            parent = chain
        node.add_image(name, config, stand_ins)
    for chain in made:  # from here on the images hold them
        node("snapshots", "label", chain, f"{ROOT_LABEL}=")


if __name__ == "__main__":
    main()
