"""Recognises kinds of failures by the text of an exception or by the last lines of a program.

Each kind has a function in ``portal/sentences/causes`` that explains it. The named groups of a pattern are parameters.
"""

import re
from dataclasses import dataclass
from typing import Any

MAX_PARAMETER_CHARACTERS = 120
MAX_LINE_CHARACTERS = 500
"""Longer lines are cut: the time of the patterns grows with the square of a line."""


@dataclass(frozen=True, slots=True)
class Kind:
    code: str
    regex: re.Pattern[str]


def _kind(code: str, regex: str) -> Kind:
    return Kind(code, re.compile(regex, re.MULTILINE))


@dataclass(frozen=True, slots=True)
class Found:
    code: str
    parameters: dict[str, Any]
    text: str
    """What was recognised."""


LOST_PEER = re.compile(
    r"Horovod has been shut down|Connection (?:closed|reset) by (?:remote )?peer|Connect(?:ion)? timeout .*\[|"
    r"ncclRemoteError|ncclSystemError|ncclInternalError|unhandled system error|NCCL communicator was aborted|"
    r"remote process exited or there was a network error|connectFullMesh|Gloo .*failed|gloo/transport/.*(?:reset|closed|Broken pipe)|"
    r"(?:recvValue|sendBytes|recvBytes|recvVector) failed|failed to recv, got|"
    r"TCPStore.*(?:reset|closed|Broken pipe|timed out)|DistNetworkError: .*(?:reset|closed|broken pipe)|DistStoreError|"
    r"WorkersShutdown|Another rank has (?:failed|ended)"
)
"""An error of a rank that follows from the end of another one."""
WAITED = re.compile(
    r"Timed out waiting|[Cc]ollective operation timeout|Application timeout caused pair closure|wait timeout after|"
    r"Barrier timed out|timed out after \d+ ?(?:ms|seconds) .*(?:store|barrier|rank)|Socket Timeout"
)
"""An error of a rank that waited too long for another one."""
HANGS = re.compile(
    r"^(?:Missing ranks:\n(?:\d+!?: .*\n)+)?.*is stalled for longer than (?P<seconds>\d+) seconds.*$", re.MULTILINE
)
"""The report of Horovod about ranks that do not take part in an operation."""

KINDS = (
    _kind("ranks_diverged", r"(?:\w+\.)*RanksDivergedError: .+?\.(?= |$)"),
    _kind("shapes_differ", r"Mismatched .* tensor shapes: .*"),
    # --- memory, disk and devices
    _kind(
        "gpu_out_of_memory",
        r"(?:torch\.(?:cuda\.)?)?OutOfMemoryError.*|.*CUDA out of memory.*|.*(?:CUDNN|CUBLAS)_STATUS_ALLOC_FAILED.*|ResourceExhaustedError.*",
    ),
    _kind(
        "out_of_memory",
        r".*(?:\bMemoryError\b|_ArrayMemoryError|Cannot allocate memory|DefaultCPUAllocator: (?:can't|not enough)|std::bad_alloc).*",
    ),
    _kind(
        "shared_memory",
        r".*(?:killed by signal: Bus error|unable to (?:open|allocate|mmap).*shared memory|out of shared memory|insufficient shared memory).*|"
        r".*unable to write to file </torch_\w+>.*|.*No space left on device.*/dev/shm.*|.*/dev/shm.*No space left on device.*",
    ),
    _kind("disk_full", r".*(?:No space left on device|Disk quota exceeded).*|OSError: \d+ requested and \d+ written$"),
    _kind("file_too_large", r".*File too large.*"),
    _kind("too_many_files", r".*Too many open files.*"),
    _kind(
        "gpu_hardware",
        r".*(?:uncorrectable ECC error|CUDA error: unspecified launch failure|GPU has fallen off the bus|\bXid\b|CUDA error: hardware).*",
    ),
    _kind(
        "no_nccl",
        r".*(?:Distributed package doesn't have NCCL|ProcessGroupNCCL is only supported with GPUs|no GPUs found!).*",
    ),
    _kind("one_gpu_twice", r".*Duplicate GPU detected.*"),
    _kind(
        "no_gpu",
        r".*(?:No CUDA GPUs are available|Found no NVIDIA driver|not compiled with CUDA|driver version is insufficient|"
        r"_cuda_setDevice|no CUDA-capable device|Attempting to deserialize object on a CUDA device|Cannot initialize CUDA).*",
    ),
    _kind(
        "wrong_gpu",
        r".*(?:invalid device ordinal|You requested gpu: |No slot '\d+' specified on host).*",  # of CUDA, Lightning, DeepSpeed
    ),
    _kind("index_on_gpu", r".*device-side assert triggered.*"),
    _kind("cuda_error", r".*CUDA error: .+"),
    # --- imports
    _kind(
        "installs_packages",
        r".*CalledProcessError: Command .*\b(?:pip[\d.]*|conda|mamba|uv)\b.*\b(?:install|add)\b.*|.*No module named '?pip'?$|"
        r"FileNotFoundError: .*'(?:[^'\n]*/)?pip[\d.]*'$|"
        r"ERROR: (?:Could not find a version that satisfies the requirement |No matching distribution found for |Could not install ).*",
    ),
    _kind(
        "installs_packages",
        r"(?:.*: )?(?:pip[\d.]*|uv|apt|apt-get): (?:command )?not found$|CondaHTTPError: .*|"
        r"E: (?:Could not open lock file|Unable to (?:acquire|locate package|lock directory)) ?.*",
    ),
    _kind("shadowed", r"ModuleNotFoundError: No module named '[\w.]+'; '(?P<module>\w+)' is not a package.*"),
    _kind("shadowed", r"AttributeError: partially initialized module '(?P<module>[\w.]+)' has no attribute .*"),
    _kind("shadowed", r"ImportError: cannot import name .* from partially initialized module '(?P<module>[\w.]+)'.*"),
    _kind(
        "relative_import",
        r"ImportError: attempted relative import (?:with no known parent package|beyond top-level package).*",
    ),
    _kind(
        "missing_library", r"(?:ImportError|OSError): (?P<library>[\w.+-]+\.so[\w.]*): cannot open shared object file.*"
    ),
    _kind("import_error", r"ModuleNotFoundError: No module named '(?P<module>[\w.]+)'.*"),
    _kind("import_error", r"(?:.*/)?python[\d.]*: No module named (?P<module>[\w.]+)$"),
    # libraries that check for others themselves, and say how to install them
    _kind("import_error", r"(?:ImportError|ModuleNotFoundError): Requirement '(?P<package>[A-Za-z0-9][\w.-]*).*"),
    _kind(
        "import_error",
        r"(?:ImportError|ModuleNotFoundError): .*\bpip3? install (?:-\S+ )*[`'\"]?(?P<package>[A-Za-z0-9][\w.-]*).*",
    ),
    _kind("import_error", r"(?:ImportError|ModuleNotFoundError): .+"),
    # --- code
    _kind("line_endings", r".*can't open file '[^'\n]*\\r'.*"),
    _kind("syntax_error", r"(?:SyntaxError|IndentationError|TabError): .+"),
    _kind("file_not_found", r".*can't open file '(?P<entry>[^'\n]+)'.*"),
    _kind("file_not_found", r".*(?:FileNotFoundError|NotADirectoryError): .*?'(?P<file>[^'\n]+)'.*"),
    _kind("file_not_found", r"FileNotFoundError: (?P<file>\S+) (?:not found|does not exist).*"),
    _kind(
        "file_not_found",
        r".*(?:unable|Unable) to (?:synchronously )?open file \(unable to open file: name = '(?P<file>[^']+)', errno = 2.*",
    ),
    _kind("file_not_found", r"^(?:\S*/)?(?:ba|z|k)?sh: (?P<entry>[^:\n]+): No such file or directory$"),
    _kind("file_not_found", r"^(?:\S*/)?(?:da)?sh: 0: (?:cannot|Can't) open (?P<entry>[^:\n]+)(?:: .*)?$"),
    _kind("folder_missing", r"(?:.*: )?cd: (?P<entered>[^:\n]+): (?:No such file or directory|Not a directory)$"),
    _kind("folder_missing", r"(?:.*: )?cd: can't cd to (?P<entered>[^:\n]+)$"),
    _kind("folder_missing", r".*Parent directory (?P<folder>\S+) does not exist.*"),
    _kind("folder_missing", r".*non-existent directory: '(?P<folder>[^'\n]+)'.*"),
    _kind("not_writable", r"(?:PermissionError|OSError): .*(?:Permission denied|Read-only file system).*"),
    _kind("address_in_use", r".*(?:EADDRINUSE|[Aa]ddress already in use).*"),
    _kind("checkpoint_differs", r".*Error\(s\) in loading state_dict.*"),
    _kind("weights_only", r".*Weights only load failed.*"),
    _kind(
        "not_a_pickle",
        r".*(?:UnpicklingError: invalid load key|PytorchStreamReader failed|pickle data was truncated|not a zip archive).*",
    ),
    _kind(
        "no_terminal",
        # as the last words: shells warn of it and go on; Perl reports it where a file cannot be opened
        r"(?!.* at \S+ line \d+\.).*(?:Inappropriate ioctl for device|termios\.error|curses\.error: setupterm).*\s*\Z",
    ),
    _kind("wrong_encoding", r"UnicodeDecodeError: .*"),
    _kind("recursion", r"RecursionError: .*"),
    _kind("input_needed", r"EOFError: EOF when reading a line"),
    _kind("unused_parameters", r".*Expected to have finished reduction in the prior iteration.*"),
    _kind("initialised_twice", r".*trying to initialize the default process group twice.*"),
    _kind(
        "not_initialised", r".*(?:Horovod has not been initialized|Default process group has not been initialized).*"
    ),
    _kind(
        "lightning_ranks",
        r".*You set `devices=(?P<devices>\d+)` and `num_nodes=(?P<nodes>\d+)` in Lightning, but .* world size \((?P<ranks>\d+)\).*",
    ),
    _kind("other_nodes", r".*(?:RendezvousTimeoutError|no extra nodes available via hostfile).*"),
    _kind(
        "mpi_failed",
        r".*(?:(?P<command>mpirun|mpiexec|prterun|orterun) was unable to|There are not enough slots available in the system).*",
    ),
    _kind("samples_differ", r".*stack expects each tensor to be equal size.*"),
    _kind(
        "types_differ", r".*(?:must have the same dtype|expected scalar type|should be the same|expected .* dtype).*"
    ),
    _kind("devices_differ", r".*Expected all tensors to be on the same device.*"),
    _kind(
        "sizes_differ",
        r".*(?:shapes cannot be multiplied|[Ss]ize mismatch|must match the size of tensor|shape '.*' is invalid for input).*",
    ),
    _kind(
        "no_internet",
        r".*(?:Temporary failure in name resolution|Name or service not known|Network is unreachable|Max retries exceeded with url|"
        r"urlopen error|couldn't connect to 'https?://|Could not resolve host|LocalEntryNotFoundError|Failed to establish a new connection|"
        r"[Tt]unnel connection failed: 403|CONNECT tunnel failed, response 403|HTTP code 403 from proxy|ProxyError\b.*403).*",
    ),
    # --- the command
    _kind(
        "line_endings",
        r".*(?:\$'\\r': command not found|unexpected token `\$'[^'\n]*\\r''|/usr/bin/env: .*\\r'?:|bad interpreter.*\^M|\^M: bad interpreter|python3?\\r).*",
    ),
    _kind("line_endings", r".*: error: .*\\r'.*"),
    _kind(
        "arguments",
        r"[^\n]*: error: (?:unrecognized arguments|the following arguments are required|argument |one of the arguments|ambiguous option).+",
    ),
    _kind(
        "arguments",
        r"(?:Error: )?(?:No such (?:option|command):? |Missing (?:option|argument) |Got unexpected extra argument|"
        r"Invalid value for |Option '?-.* requires).*",
    ),
    _kind("arguments", r".*FATAL Flags parsing error:.*|.*Unknown command line flag '.*"),
    _kind(
        "shell_syntax",
        r"^(?:(?:\S*/)?(?:ba|da|z)?sh|(?P<script>[^:\n]+)): (?:-c: )?"
        r"(?:line \d+: (?:syntax error(?::| near| in )|unexpected EOF while looking)|\d+: Syntax error:).*",
    ),
    _kind("bad_interpreter", r"(?:.*: )?(?P<file>[^\s:]+): (?P<interpreter>/[^\s:]+): bad interpreter.*"),
    _kind("bad_interpreter", r"(?:.*: )?(?P<file>[^\s:]+): cannot execute: required file not found.*"),
    _kind(
        "not_executable",
        r"(?:.*: )?(?P<file>[^\s:]+): (?:Permission denied|cannot execute binary file.*|Exec format error|Is a directory)$",
    ),
    _kind("command_not_found", r"(?:.*: )?(?P<command>[^\s:]+): (?:command )?not found$"),
    _kind("command_not_found", r"(?:.*: )?(?:line )?\d+: (?P<command>[^\s:]+): No such file or directory$"),
    _kind("interrupted", r"KeyboardInterrupt$"),
)
NOT_FROM_SHELLS = {"not_executable", "command_not_found", "bad_interpreter", "shell_syntax"}
"""Kinds that only a shell reports, never an exception."""


def recognise(text: str, *, of_exception: bool = True) -> Found | None:
    """Return the kind of failure of an exception's text, or of the last lines of a program; None for an unknown one."""
    text = "\n".join(line[:MAX_LINE_CHARACTERS] for line in text.split("\n"))
    for kind in KINDS:
        if of_exception and kind.code in NOT_FROM_SHELLS:
            continue
        found = kind.regex.search(text)
        if found:
            named = {name: value[:MAX_PARAMETER_CHARACTERS] for name, value in found.groupdict().items() if value}
            return Found(kind.code, named, found.group(0).strip())
    return None


PACKAGES = {
    "Bio": "biopython",
    "cv2": "opencv-python-headless",
    "PIL": "pillow",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "PyYAML",
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "Crypto": "pycryptodome",
    "dateutil": "python-dateutil",
    "docx": "python-docx",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu",
    "git": "GitPython",
    "hydra": "hydra-core",
    "jwt": "PyJWT",
    "lightning_fabric": "lightning",
    "mpl_toolkits": "matplotlib",
    "osgeo": "gdal",
    "pytorch_lightning": "pytorch-lightning",
    "segmentation_models_pytorch": "segmentation-models-pytorch",
    "serial": "pyserial",
    "sentence_transformers": "sentence-transformers",
    "torch_geometric": "torch-geometric",
    "umap": "umap-learn",
    "zmq": "pyzmq",
}
"""The package on the index that has a module, where its name differs."""


def package_of(module: str) -> str:
    """Return the name under which the package of a module is installed."""
    top = module.partition(".")[0]
    return PACKAGES.get(top, top)
