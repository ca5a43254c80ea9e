"""The command line: `curateevo --help`."""

from __future__ import annotations

import errno
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from curateevo.api.errors import ContractBroken, CurateEvoError, ExitCode, PolicyRejected, SpecInvalid
from curateevo.api.evolution import CurationEvolution, EvolutionPhase, PolicyVersion, Reason, Stage
from curateevo.api.parse import parse_evolution
from curateevo.api.spec import BaseModelRef, Corpus, CorpusFormat, CorpusSource, Memory, Sampling, Sandbox, Splits
from curateevo.api.stage import (
    CurateParams,
    CurateSummary,
    FileRef,
    IngestParams,
    IngestSummary,
    Manifest,
    StageParams,
    StageRequest,
    StoreRef,
)
from curateevo.evolution.names import submission_key
from curateevo.evolution.requests import CORPUS_FILES
from curateevo.evolver.patch import unified_diff
from curateevo.evolver.workspace import CONTEXT, open_workspace
from curateevo.local.display import Display, versions_table
from curateevo.local.objects import RunFolder, resolve_paths, start_or_resume
from curateevo.local.pull import pull
from curateevo.local.shell import retry_failed, run_evolution
from curateevo.policy.builtin import NAMES, source_of
from curateevo.policy.gate import GateSettings, curate_with_gate
from curateevo.policy.source import check_static, policy_digest
from curateevo.report.page import write_report
from curateevo.store.artifacts import read_manifest
from curateevo.store.connect import connect
from curateevo.store.protocol import Store
from curateevo.trajectories.corpus import read_features
from curateevo.trajectories.profile import profile_of

WIDTH_SECONDHAND = 140
"""Columns where nobody's terminal says how wide it is."""
DIGEST_CHARS = 12
out = Console(soft_wrap=True, width=None if sys.stdout.isatty() else WIDTH_SECONDHAND)
err = Console(stderr=True, soft_wrap=True)
app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Evolve the code that turns agent trajectories into SFT data, RL tasks and memory.",
)
policy_app = typer.Typer(
    no_args_is_help=True, help="The lineage of policies, read like git; the contract gate on a file."
)
corpus_app = typer.Typer(no_args_is_help=True, help="Corpora that `curateevo ingest` made.")
app.add_typer(policy_app, name="policy")
app.add_typer(corpus_app, name="corpus")

RunDir = Annotated[Path, typer.Argument(help="folder of a run", metavar="RUN")]


def main() -> None:
    """Entry point: errors that a user can mend are shown as text, with an exit code by class."""
    try:
        app()
    except CurateEvoError as error:
        err.print(Text("error: ", style="bold red") + Text(str(error)))
        sys.exit(int(error.exit_code))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        err.print(Text("error: ", style="bold red") + Text(f"no space left: {error.filename or error}"))
        err.print(Text("  hint: free some space and run the same command again: nothing is lost"))
        sys.exit(int(ExitCode.DENIED))


@app.command()
def run(
    file: Annotated[Path, typer.Argument(help="YAML of a CurationEvolution", metavar="FILE")],
    dir: Annotated[Path | None, typer.Option(help="folder of the run; default runs/<name>")] = None,
    retry: Annotated[bool, typer.Option("--retry", help="try the failed stage of a failed run again")] = False,
) -> None:
    """Run an evolution, or go on with one. Ctrl-C keeps what is done."""
    wanted = _load(file)
    folder = RunFolder(dir or Path("runs") / wanted.metadata.name)
    wanted = wanted.model_copy(update={"spec": resolve_paths(wanted.spec, file.parent, folder.root)})
    with folder.locked():
        evolution = start_or_resume(folder, wanted)
        if retry:
            evolution = retry_failed(folder, evolution)
        signal.signal(signal.SIGTERM, _interrupt)
        try:
            with Display(out) as display:
                evolution = run_evolution(folder, evolution, display)
        except KeyboardInterrupt:
            err.print(Text(f"interrupted: what is done is kept. Go on with: curateevo run {file} --dir {folder.root}"))
            sys.exit(130)
        report = write_report(folder, folder.root / "report.html")
    out.print(versions_table(evolution, folder.versions()))
    _sealed_lines(folder, evolution)
    out.print(Text(f"report: {report}"))
    if evolution.status.phase is EvolutionPhase.FAILED:
        err.print(Text("failed: ", style="bold red") + Text(f"{evolution.status.reason}: {evolution.status.message}"))
        err.print(Text(f"  hint: {_way_on(file, folder, evolution)}"))
        sys.exit(1)


@app.command()
def validate(
    files: Annotated[list[Path], typer.Argument(help="YAML files", metavar="FILE...")],
) -> None:
    """Say what `kubectl apply` would refuse, with the field's path."""
    failed = False
    for file in files:
        try:
            _load(file)
            out.print(Text(f"{file}: valid"))
        except CurateEvoError as error:
            failed = True
            err.print(Text(str(error)))
    if failed:
        sys.exit(65)


@app.command()
def status(
    run: RunDir,
    output: Annotated[str, typer.Option("-o", "--output", help="table, json or yaml")] = "table",
) -> None:
    """The status of a run and its versions."""
    folder = RunFolder(run)
    evolution, versions = folder.evolution(), folder.versions()
    if output == "table":
        out.print(versions_table(evolution, versions))
        _sealed_lines(folder, evolution)
        return
    wire = {"evolution": evolution.to_wire(), "versions": [v.to_wire() for v in versions.values()]}
    print(json.dumps(wire, indent=1) if output == "json" else yaml.safe_dump(wire, sort_keys=False))  # noqa: T201


@app.command()
def report(
    run: RunDir,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="default RUN/report.html")] = None,
) -> None:
    """Write one self-contained HTML page about a run."""
    folder = RunFolder(run)
    out.print(Text(f"report: {write_report(folder, output or folder.root / 'report.html')}"))


@app.command("pull")
def pull_run(
    file: Annotated[Path, typer.Argument(help="what `kubectl get ce,pver -o json` printed; - is standard input")],
    dir: Annotated[Path, typer.Option("--dir", help="the run's folder to write")],
    name: Annotated[str | None, typer.Option(help="which evolution, where there are several")] = None,
    endpoint: Annotated[str | None, typer.Option(help="the store's address from here, e.g. of a port-forward")] = None,
) -> None:
    """Take over a cluster's run for `report`, `status` and `policy`. Artifacts are read from its store."""
    text = sys.stdin.read() if str(file) == "-" else _read_text(file)
    evolution = pull(text, name, endpoint, RunFolder(dir))
    out.print(f"{evolution.metadata.name}: `curateevo report {dir}`, `curateevo policy log {dir}`")


@app.command()
def ingest(
    sources: Annotated[list[str], typer.Argument(help="files, globs, folders or URIs", metavar="SOURCE...")],
    output: Annotated[Path, typer.Option("-o", "--output", help="folder of the corpus")],
    format: Annotated[str, typer.Option(help=", ".join(get_args(CorpusFormat)))] = "auto",
    max_set_aside_fraction: Annotated[float, typer.Option(help="rows that may be unreadable, 0..1")] = 0.02,
    grace: Annotated[str | None, typer.Option(help="base model that scores turns", metavar="MODEL")] = None,
) -> None:
    """Read trajectories into a corpus: Parquet, features, profile; broken rows are set aside and named."""
    chosen = tuple(CorpusSource.model_validate({"uri": _absolute(s), "format": format}) for s in sources)
    corpus = Corpus(sources=chosen, max_set_aside_fraction=max_set_aside_fraction, grace=grace is not None)
    model = None if grace is None else BaseModelRef(base=_absolute(grace))
    params = IngestParams(corpus=corpus, suites=(), splits=Splits(), model=model)
    manifest = _stage_alone(Stage.INGEST, params, {}, output)
    summary = manifest.summary
    assert isinstance(summary, IngestSummary)
    out.print(Text(f"{summary.trajectories} trajectories, {summary.turns} turns, {summary.successes} successes"))
    out.print(Text(f"read as {_counts(summary.formats)}; licence: {_counts(summary.licences)}"))
    if summary.set_aside:
        out.print(Text(f"{summary.set_aside} rows set aside: {output / 'set_aside.jsonl'}", style="yellow"))
    if summary.unscored:
        out.print(Text(f"{summary.unscored} trajectories do not fit the model: not scored", style="yellow"))
    out.print(Text(f"corpus: {output}"))


@corpus_app.command("profile")
def corpus_profile(
    corpus: Annotated[Path, typer.Argument(help="folder of a corpus", metavar="CORPUS")],
) -> None:
    """Counts, shares and quantiles of a corpus, as JSON."""
    print(json.dumps(profile_of(read_features(corpus)), indent=1))  # noqa: T201


@app.command()
def curate(
    policy: Annotated[str, typer.Option(help=f"a policy file, or one of {', '.join(NAMES)}")],
    corpus: Annotated[Path, typer.Option(help="folder of a corpus")],
    output: Annotated[Path, typer.Option("-o", "--output", help="folder for the resources")],
) -> None:
    """Run a policy alone, in the sandbox, through the contract gate."""
    with _policy_file(policy) as path:
        manifest = _stage_alone(
            Stage.CURATE,
            CurateParams(sandbox=Sandbox(), memory=Memory(), seed=0),
            {"policy.py": path, **{name: corpus / name for name in CORPUS_FILES}},
            output,
        )
    summary = manifest.summary
    assert isinstance(summary, CurateSummary)
    if manifest.reason:
        raise PolicyRejected(manifest.reason, manifest.message.partition(": ")[2])
    out.print(
        Text(
            f"{summary.sft_rows} SFT rows ({summary.sft_turns} turns), {summary.rl_tasks} RL tasks, "
            f"{summary.memory_items} notes; sandbox {summary.tier}"
        )
    )
    profile = json.loads((output / "profile.json").read_text())
    _print_profile(profile)
    _print_representation(profile)
    out.print(Text(f"resources: {output}"))


@app.command()
def evaluate(
    suite: Annotated[str, typer.Option(help="toolworld, bfcl, tau2, acebench, or a plug-in's name")],
    endpoint: Annotated[str, typer.Option(help="an OpenAI-compatible server, with its /v1; key in CURATEEVO_API_KEY")],
    model: Annotated[str, typer.Option(help="the model's name on that server")],
    output: Annotated[Path, typer.Option("-o", "--output", help="folder; the same command goes on in it")],
    params: Annotated[str, typer.Option(help="the suite's params, as YAML")] = "{}",
    repeats: Annotated[int, typer.Option(min=1, help="runs of each task; at temperature 0 one")] = 1,
    temperature: Annotated[float, typer.Option(min=0.0, max=2.0)] = Sampling().temperature,
    max_turns: Annotated[int, typer.Option(min=1, help="answers to one user turn, at most")] = Sampling().max_turns,
    max_tokens: Annotated[int, typer.Option(min=1, help="generated tokens per answer")] = Sampling().max_tokens,
    concurrency: Annotated[int, typer.Option(min=1, help="episodes at once")] = 16,
    seed: int = 0,
) -> None:
    """Score a served model on a suite, with what doing nothing scores beside it. Killed, it goes on where it was."""
    from curateevo.local.suites import evaluate_served, scores_table

    try:
        parsed = yaml.safe_load(params)
    except yaml.YAMLError as error:
        raise SpecInvalid(f"--params is no YAML: {error}", "e.g. '{categories: [live], perCategory: 20}'") from error
    request = {
        "suite": {"name": suite, "params": parsed or {}},
        "endpoint": endpoint,
        "model": model,
        "sampling": {"temperature": temperature, "maxTurns": max_turns, "maxTokens": max_tokens},
        "repeats": repeats,
        "seed": seed,
        "concurrency": concurrency,
    }
    scores = evaluate_served(request, output)
    out.print(scores_table(scores))
    for name, count in scores["errors"].items():
        out.print(Text(f"not measured: {count} of {scores['episodes']} episodes: {name}", style="yellow"))
    if scores["missing"]:
        out.print(Text("the same command tries those again that were not measured"))
    out.print(Text(f"scores: {output / 'scores.json'}"))


@app.command()
def export(
    run: RunDir,
    to: Annotated[str, typer.Option(help="trl, verl, slime, agentgym, atif or jsonl")],
    output: Annotated[Path, typer.Option("-o", "--output", help="folder")],
) -> None:
    """Write the champion's resources for another trainer."""
    from curateevo.local.export import export_champion

    folder = RunFolder(run)
    for path in export_champion(folder.evolution(), to, output):
        out.print(Text(str(path)))


@policy_app.command("log")
def policy_log(run: RunDir) -> None:
    """Versions, newest first, with what was tried and what became of it; rounds that made none, with who and why."""
    from curateevo.report.story import read_skipped

    folder = RunFolder(run)
    evolution, versions = folder.evolution(), folder.versions()
    skipped = {s.number: s for s in read_skipped(_store(evolution), evolution, versions)}
    for number in sorted({*versions, *skipped}, reverse=True):
        head = Text(f"v{number} ", style="bold yellow")
        if number in skipped:
            out.print(head + Text(f"{'-' * DIGEST_CHARS}  no candidate  {skipped[number].reason}"))
            out.print(Text(f"    {skipped[number].message}", style="dim"))
            continue
        version = versions[number]
        state, digest = version.status, version.spec.policy_digest.removeprefix("sha256:")[:DIGEST_CHARS]
        out.print(head + Text(f"{digest}  {state.verdict or state.phase}  {state.reason or ''}"))
        if (proposal := _proposal(folder, version)) is not None:
            out.print(Text(f"    {proposal['method']}: {proposal['hypothesis']}"))
        if state.message:
            out.print(Text(f"    {state.message}", style="dim"))


@policy_app.command("show")
def policy_show(run: RunDir, number: Annotated[int, typer.Argument(help="version")]) -> None:
    """The source of a version's policy."""
    print(_source(RunFolder(run), number))  # noqa: T201


@policy_app.command("diff")
def policy_diff(
    run: RunDir,
    number: Annotated[int, typer.Argument(help="version")],
    against: Annotated[int | None, typer.Argument(help="another version; default its parent")] = None,
) -> None:
    """The difference of a version to its parent, or to another version."""
    folder = RunFolder(run)
    parent = _version(folder, number).spec.parent if against is None else against
    before = "" if parent is None else _source(folder, parent)
    diff = unified_diff(before, _source(folder, number), f"v{parent}/policy.py", f"v{number}/policy.py")
    print(diff, end="")  # noqa: T201


@policy_app.command("check")
def policy_check(
    file: Annotated[str, typer.Argument(help="a policy file, or a built-in's name", metavar="FILE")],
    corpus: Annotated[Path | None, typer.Option(help="run it on this corpus as well")] = None,
    workspace: Annotated[Path | None, typer.Option(help="check it as a coding agent's proposal, too")] = None,
) -> None:
    """The contract gate on a policy: static rules, and with --corpus two runs and the rules on the rows."""
    context = None
    if workspace is not None:
        _, claim = open_workspace(workspace).take()
        context = workspace / CONTEXT
        out.print(Text(f"proposal: passed ({claim.method})"))
    with _policy_file(file) as path:
        source = path.read_text(encoding="utf-8")
        check_static(source)
        out.print(Text(f"static rules: passed ({policy_digest(source)})"))
        if corpus is not None:
            prompts = corpus / "dev_prompts.json"
            dev = json.loads(prompts.read_text()) if prompts.is_file() else {}
            found = curate_with_gate(
                path, corpus, dev_prompts=dev, context=context, settings=GateSettings(), rewritten={}
            )
            made = found.material
            rows = f"{len(made.sft)} SFT rows, {len(made.rl)} RL tasks, {len(made.memory)} notes"
            out.print(Text(f"contract: passed; {rows}; sandbox {found.run.tier}"))
            if requests := found.recipe.requests:
                out.print(
                    Text(f"{len(requests)} rewrites are requested: no model is asked here, spec.augmentation names it")
                )


@policy_app.command("submit")
def policy_submit(run: RunDir, file: Annotated[Path, typer.Argument(help="the next policy")]) -> None:
    """Hand the waiting round of a run with proposer.type manual its policy."""
    folder = RunFolder(run)
    evolution = folder.evolution()
    source = _read_text(file)
    check_static(source)
    number = evolution.status.decided + 1
    uid = evolution.metadata.uid or ""
    if not _store(evolution).put_once(submission_key(uid, number), source.encode()):
        raise ContractBroken(f"version {number} has its submission already", "go on with `curateevo run`")
    out.print(Text(f"submitted for version {number}: {policy_digest(source)}; go on with `curateevo run`"))


def _counts(counted: dict[str, int]) -> str:
    return ", ".join(f"{name} {number}" for name, number in counted.items())


def _interrupt(number: int, frame: object) -> None:
    """A polite end (SIGTERM) is handled as Ctrl-C is."""
    raise KeyboardInterrupt


def _way_on(file: Path, folder: RunFolder, evolution: CurationEvolution) -> str:
    """A verdict is final, a failed stage of the evolution is not."""
    if evolution.status.reason is Reason.BASELINE_FAILED:
        return f"version 0 has its verdict; mend the cause and begin anew: curateevo run {file} --dir ANOTHER"
    return f"mend it, then curateevo run {file} --dir {folder.root} --retry"


def _load(file: Path) -> CurationEvolution:
    return parse_evolution(_read_text(file), str(file))


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ContractBroken(f"{file}: no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ContractBroken(f"{file}: {error}") from error


def _absolute(uri: str) -> str:
    return uri if "://" in uri else str(Path(uri).absolute())


@contextmanager
def _policy_file(name: str) -> Iterator[Path]:
    """A policy file by path or by a built-in's name."""
    if name in NAMES:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{name}.py"
            path.write_text(source_of(name), encoding="utf-8")
            yield path
        return
    _read_text(Path(name))
    yield Path(name)


def _stage_alone(stage: Stage, params: StageParams, inputs: dict[str, Path], output: Path) -> Manifest:
    """Run one stage program on files, and leave its artifact's files in `output`."""
    for name, path in inputs.items():
        if not path.is_file():
            raise ContractBroken(f"{path}: no such file ({name})", "make a corpus with `curateevo ingest`")
    with tempfile.TemporaryDirectory(prefix="curateevo-") as name:
        store_ref = StoreRef(uri=(Path(name) / "store").as_uri())
        store = connect(store_ref)
        refs: dict[str, FileRef] = {path: store.put(f"inputs/{path}", source) for path, source in inputs.items()}
        request = StageRequest(
            evolution_uid="alone", version=None, stage=stage, attempt=1, store=store_ref, prefix="artifact",
            inputs=refs, params=params,
        )  # fmt: skip
        path = Path(name) / "request.json"
        path.write_text(json.dumps(request.to_wire()))
        log = Path(name) / "termination.json"
        command = [
            sys.executable,
            "-m",
            "curateevo_jobs",
            params.stage,
            "--request",
            str(path),
            "--termination-log",
            str(log),
        ]
        code = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        if code.returncode != 0:
            said = json.loads(log.read_text())["message"] if log.is_file() else code.stderr.strip()[-2000:]
            raise ContractBroken(said)
        manifest = read_manifest(store, "artifact")
        assert manifest is not None
        output.mkdir(parents=True, exist_ok=True)
        for entry in manifest.files:
            store.fetch(entry.ref, output / entry.path)
    return manifest


def _store(evolution: CurationEvolution) -> Store:
    return connect(StoreRef(uri=evolution.spec.storage.uri, endpoint=evolution.spec.storage.endpoint))


def _version(folder: RunFolder, number: int) -> PolicyVersion:
    versions = folder.versions()
    if number not in versions:
        raise ContractBroken(
            f"no version {number} in {folder.root}", f"versions: {', '.join(map(str, sorted(versions)))}"
        )
    return versions[number]


def _source(folder: RunFolder, number: int) -> str:
    raw = _store(folder.evolution()).get(_version(folder, number).spec.policy_key)
    if raw is None:
        raise ContractBroken(f"the policy of version {number} is not in the store")
    return raw.decode()


def _proposal(folder: RunFolder, version: PolicyVersion) -> dict[str, Any] | None:
    key = version.spec.policy_key.replace("policy.py", "proposal.json")
    raw = _store(folder.evolution()).get(key) if version.spec.number else None
    return json.loads(raw) if raw else None


def _sealed_lines(folder: RunFolder, evolution: CurationEvolution) -> None:
    from curateevo.report.story import read_story

    for name, score in read_story(folder).sealed:
        out.print(Text(f"sealed test: {name:<22} {score.p:.3f} of {score.tasks} tasks"))


def _print_profile(profile: dict[str, Any]) -> None:
    table = Table(title="profile", title_justify="left")
    table.add_column("what")
    table.add_column("value")
    for name in (
        "trajectories",
        "turns",
        "calls",
        "tokens",
        "success",
        "turn_flags",
        "exact_duplicates",
        "families",
    ):
        value = profile.get(name)
        text = ", ".join(f"{k} {v}" for k, v in list(value.items())[:8]) if isinstance(value, dict) else str(value)
        table.add_row(name, text)
    out.print(table)


def _print_representation(profile: dict[str, Any]) -> None:
    """What stands surely more, or less, often in the SFT rows than in the corpus: at most four of each."""
    from curateevo.report.representation import most_biased

    for word, found in zip(("over", "under"), most_biased(profile, 4), strict=True):
        out.print(Text(f"{word}-represented: {'; '.join(found) or 'nothing surely'}"))


if __name__ == "__main__":
    main()
