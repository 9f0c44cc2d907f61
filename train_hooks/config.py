"""From a job file to a JobSpec: every fault at once, each with its path."""

from __future__ import annotations

import difflib
import ipaddress
import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Set
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import yaml

from paritygate.train_hooks.errors import Fault, JobFileError
from paritygate.train_hooks.launch.contracts import CONTRACTS, get_contract
from paritygate.train_hooks.types import OWN_VARIABLES, ExportSpec, JobSpec, Resources

SCHEMA = "paritygate.job/v1"
MAX_FILE_BYTES = 1 << 20
"""A job file is a page of text; anything beyond a mebibyte is another file, given by mistake."""

T = TypeVar("T")
Check = Callable[[Any], T]
"""Turns a raw value into a checked one, or raises ValueError with what was expected."""

_DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HOST = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?")


def load_job(path: Path | str) -> JobSpec:
    """Read a job file; relative paths in it start at its own directory.

    Raises:
        JobFileError: If the file cannot be read, or is not a job; with every fault.
    """
    path = Path(path)
    job = parse_job(_read(path), source=str(path))
    return replace(job, directory=str(path.resolve().parent))


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise JobFileError(
                [Fault("$", f"the file has {path.stat().st_size} bytes, a job has at most {MAX_FILE_BYTES}")],
                source=str(path),
            )
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise JobFileError(
            [Fault("$", f"the job file cannot be read: {reason}; expected a YAML file such as job.yaml")],
            source=str(path),
        ) from error


def parse_job(text: str, *, source: str = "job") -> JobSpec:
    """The job that a YAML text describes; relative paths in it start at the current directory.

    Raises:
        JobFileError: With every fault found.
    """
    try:
        value = yaml.load(text, Loader=_StrictLoader)  # noqa: S506 - a SafeLoader that also refuses double keys
    except yaml.YAMLError as error:
        raise JobFileError([Fault("$", _yaml_problem(error))], source=source) from error
    except (
        ValueError
    ) as error:  # PyYAML lets through what int() and date() say of a scalar that they cannot read
        raise JobFileError([Fault("$", f"a value cannot be read: {error}")], source=source) from error
    except RecursionError as error:
        raise JobFileError([Fault("$", "the YAML is nested too deeply for a job")], source=source) from error
    return build_job(value, source=source)


def _yaml_problem(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"not YAML{where}: {problem}"


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice, of which YAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            name = str(key.value)
            if name in seen and key.tag != "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {name!r} is given twice", key.start_mark
                )
            seen.add(name)
        return super().construct_mapping(node, deep)


def build_job(value: object, *, source: str = "job") -> JobSpec:
    """The job that plain values (of YAML or JSON) describe.

    Raises:
        JobFileError: With every fault found.
    """
    fields = _Fields(value, "$", [])
    job = _read_fields(fields)
    if job is not None:
        faulty = {re.split(r"[.$]+", fault.path)[1] for fault in fields.faults}
        fields.faults.extend(_contradictions(job, fields.given, faulty))
    if job is None or fields.faults:
        raise JobFileError(fields.faults, source=source)
    return job


class _Fields:
    """One mapping of the file, read field by field; faults are gathered, never raised."""

    def __init__(self, value: object, path: str, faults: list[Fault]) -> None:
        self.path = path
        self.faults = faults
        self.given: dict[str, Any] = {}
        self._known: list[str] = []
        if isinstance(value, Mapping):
            self.given = {str(key): item for key, item in value.items()}
        else:
            self.fault("", f"expected a mapping of fields, got {_shown(value)}")

    def fault(self, name: str, problem: str) -> None:
        self.faults.append(Fault(f"{self.path}.{name}" if name else self.path, problem))

    def take(self, name: str, check: Check[T], default: T) -> T:
        """The checked field, or the default where it is absent, null or faulty."""
        self._known.append(name)
        value = self.given.get(name)
        if value is None:
            return default
        try:
            return check(value)
        except ValueError as error:
            self.fault(name, f"{name} must be {error}, got {_shown(value)}")
            return default

    def need(self, name: str, check: Check[T], default: T) -> T:
        """As `take`, but an absent field is a fault."""
        if self.given.get(name) is None:
            self.fault(name, f"{name} is missing")
        return self.take(name, check, default)

    def section(self, name: str) -> _Fields | None:
        self._known.append(name)
        value = self.given.get(name)
        return None if value is None else _Fields(value, f"{self.path}.{name}", self.faults)

    def refuse_unknown(self) -> None:
        for name in self.given:
            if name not in self._known:
                near = difflib.get_close_matches(name, self._known, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(self._known))}"
                self.fault(name, f"unknown key {name!r}; {hint}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _read_fields(fields: _Fields) -> JobSpec | None:
    if not fields.given:
        if not fields.faults:
            fields.fault("", f"the job is empty; expected schema: {SCHEMA}, name, framework and script")
        return None
    fields.need("schema", _one_of([SCHEMA]), SCHEMA)
    nothing: tuple[str, ...] = ()
    hosts = fields.take("hosts", _list_of(_host), nothing)
    env = _read_env(fields)
    job = JobSpec(
        name=fields.need("name", _dns_label, "job"),
        framework=fields.need("framework", _one_of(CONTRACTS), "pytorch"),
        script=fields.take("script", _text, None),
        module=fields.take("module", _module, None),
        command=fields.take("command", _list_of(_argument), nothing),
        args=fields.take("args", _list_of(_argument), nothing),
        python=fields.take("python", _text, None),
        environment=fields.take("environment", _environment, None),
        nodes=fields.take("nodes", _whole(1), max(1, len(hosts))),
        processes_per_node=fields.take("processes_per_node", _whole(1), 1),
        hosts=hosts,
        master_address=fields.take("master_address", _host, None)
        or _from_env(fields, env, "MASTER_ADDR", _host),
        master_port=fields.take("master_port", _port, None)
        or _from_env(fields, env, "MASTER_PORT", _port_text),
        env={name: text for name, text in env.items() if name not in ("MASTER_ADDR", "MASTER_PORT")},
        workdir=fields.take("workdir", _text, "."),
        resources=_read_resources(fields.section("resources")),
        image=fields.take("image", _text, None),
        timeout_s=fields.take("timeout_s", _seconds, None),
        stop_grace_s=fields.take("stop_grace_s", _seconds, 10.0),
        max_restarts=fields.take("max_restarts", _whole(0), 0),
        queue=fields.take("queue", _dns_label, None),
        priority=fields.take("priority", _dns_label, None),
        namespace=fields.take("namespace", _dns_label, None),
        export=_read_export(fields.section("export")),
    )
    fields.refuse_unknown()
    return job


def _read_resources(fields: _Fields | None) -> Resources:
    if fields is None:
        return Resources()
    resources = Resources(
        cpus=fields.take("cpus", _whole(1), None),
        memory_mib=fields.take("memory_mib", _whole(1), None),
        gpus=fields.take("gpus", _whole(0), 0),
    )
    fields.refuse_unknown()
    return resources


def _read_export(fields: _Fields | None) -> ExportSpec | None:
    if fields is None:
        return None
    export = ExportSpec(
        name=fields.need("name", _text, ""),
        repository=fields.take("repository", _text, None),
        bundle_dir=fields.take("bundle_dir", _text, None),
    )
    fields.refuse_unknown()
    return export


def _read_env(fields: _Fields) -> dict[str, str]:
    section = fields.section("env")
    if section is None:
        return {}
    env: dict[str, str] = {}
    for name, value in section.given.items():
        problem = _env_problem(name, value)
        if problem:
            section.fault(name, problem)
        else:
            env[name] = str(value)
    return env


def _env_problem(name: str, value: Any) -> str | None:
    if not _ENV_NAME.fullmatch(name):
        return f"{name!r} is not a variable name; expected letters, digits and underscores"
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return f"{name} must be a text or a number; quote {_shown(value)} to pass it as written"
    if "\0" in str(value):
        return f"{name} must not hold a zero byte"
    return None


def _from_env(fields: _Fields, env: Mapping[str, str], name: str, check: Check[T]) -> T | None:
    """A checked variable that says what a field of the job could say as well."""
    if name not in env:
        return None
    try:
        return check(env[name])
    except ValueError as error:
        fields.fault(f"env.{name}", f"{name} must be {error}, got {_shown(env[name])}")
        return None


# Checks of single values: each says what was expected; the caller says what was given and where.


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ValueError("a text")
    return value


def _module(value: Any) -> str:
    if not isinstance(value, str) or not all(part.isidentifier() for part in value.split(".")):
        raise ValueError("a module name such as package.train")
    return value


def _environment(value: Any) -> str:
    from paritygate.converter.environments.specs import SPECS  # only jobs that name one pay for the import

    return _one_of(SPECS)(value)


def _argument(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float) or "\0" in str(value):
        raise ValueError("a text or a number")
    return str(value)


def _dns_label(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 50 or not _DNS_LABEL.fullmatch(value):
        raise ValueError("at most 50 lower-case letters, digits and dashes, beginning with a letter")
    return value


def _host(value: Any) -> str:
    """A host name or address; only what cannot break out of a command line or an endpoint."""
    if isinstance(value, str):
        if _HOST.fullmatch(value):
            return value
        try:
            return str(ipaddress.ip_address(value.strip("[]")))
        except ValueError:
            pass
    raise ValueError("a host name or an IP address")


def _whole(least: int) -> Check[Any]:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 1_000_000:
            raise ValueError(f"a whole number of at least {least}")
        return value

    return check


def _port(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 65535:
        raise ValueError("a port from 1 to 65535")
    return value


def _port_text(value: str) -> int:
    return _port(int(value) if value.isdecimal() else value)


def _seconds(value: Any) -> float:
    wrong = isinstance(value, bool) or not isinstance(value, int | float)
    if wrong or not math.isfinite(value) or value <= 0:
        raise ValueError("a number of seconds above 0")
    return float(value)


def _one_of(names: Iterable[str]) -> Check[str]:
    def check(value: Any) -> str:
        if value not in names:
            raise ValueError(f"one of {', '.join(sorted(names))}")
        return str(value)

    return check


def _list_of(check: Check[str]) -> Check[tuple[str, ...]]:
    def check_all(value: Any) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise ValueError("a list")  # noqa: TRY004 - all checks say so in one way
        try:
            return tuple(map(check, value))
        except ValueError as error:
            raise ValueError(f"a list in which each entry is {error}") from error

    return check_all


# What single fields cannot know.


def _contradictions(job: JobSpec, given: Mapping[str, Any], faulty: Set[str]) -> Iterator[Fault]:
    """Faults between fields, asked only of fields that are right by themselves.

    Args:
        job: The job, with the default in place of each faulty field.
        given: The fields as they were given.
        faulty: Names of the fields that have a fault of their own.
    """
    rules: list[tuple[set[str], Callable[[], Iterable[Fault]]]] = [
        ({"script", "module", "command", "python", "environment"}, lambda: _program_faults(job)),
        ({"hosts", "nodes"}, lambda: _host_faults(job)),
        ({"framework", "env"}, lambda: _reserved_faults(job)),
        ({"hosts", "nodes", "env", "master_address"}, lambda: _master_faults(job, given)),
        (
            {"framework", "nodes", "processes_per_node", "max_restarts"},
            lambda: get_contract(job.framework).faults(job),
        ),
    ]
    for fields, faults in rules:
        if not fields & faulty:
            yield from faults()


def _program_faults(job: JobSpec) -> Iterable[Fault]:
    given = [name for name in ("script", "module", "command") if getattr(job, name)]
    if len(given) != 1:
        what = f"got {' and '.join(given)}" if given else "got none of them"
        yield Fault(
            f"$.{given[-1] if given else 'script'}", f"give one of script, module and command, {what}"
        )
    if job.python and job.environment:
        yield Fault("$.environment", "one of python and environment may be given, both are")
    if job.command and (job.python or job.environment) and "{python}" not in job.command:
        yield Fault(
            "$.command",
            "with command, python and environment act only where the command says {python}; "
            "write command: ['{python}', ...] or leave them out",
        )


def _host_faults(job: JobSpec) -> Iterable[Fault]:
    if job.hosts and len(job.hosts) != job.nodes:
        yield Fault("$.hosts", f"hosts must name each of the {job.nodes} nodes, got {len(job.hosts)}")
    if len(set(job.hosts)) != len(job.hosts):
        yield Fault("$.hosts", f"hosts must name each node once, got {', '.join(job.hosts)}")


def _reserved_faults(job: JobSpec) -> Iterable[Fault]:
    reserved = get_contract(job.framework).reserved
    for name in job.env:
        if name in reserved | OWN_VARIABLES:
            yield Fault(f"$.env.{name}", f"{name} is set by the launcher for each rank; take it out")


def _master_faults(job: JobSpec, given: Mapping[str, Any]) -> Iterable[Fault]:
    """Rank 0 must be where every node looks for it, and every node must mean the same machine.

    Source: case "master address": localhost on two machines, a machine that takes no part.
    """
    address = job.master_address
    if address is None:
        return
    named = given.get("master_address")
    in_env = (given.get("env") or {}).get("MASTER_ADDR")
    path = "$.master_address" if named else "$.env.MASTER_ADDR"
    if named and in_env and named != in_env:
        yield Fault(path, f"master_address {named} and env MASTER_ADDR {in_env} differ; give one of them")
    if job.nodes > 1 and job.hosts and is_loopback(address):
        yield Fault(
            path,
            f"MASTER_ADDR {address} means another machine on each of the {job.nodes} nodes; "
            f"expected one of {', '.join(job.hosts)}",
        )
    elif job.hosts and not is_loopback(address) and address not in job.hosts:
        yield Fault(
            path, f"MASTER_ADDR {address} takes no part in the job; expected one of {', '.join(job.hosts)}"
        )


def is_loopback(address: str) -> bool:
    """Whether an address reaches the machine that uses it, whichever that is."""
    if address.lower().split(".")[0] == "localhost":
        return True
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return parsed.is_loopback or parsed.is_unspecified
