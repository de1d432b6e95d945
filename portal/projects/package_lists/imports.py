"""Which package to install for a module that a program imports, where an upload has no list."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from packaging.utils import canonicalize_name

from .conda_names import SAME

RENAMED = {
    "Bio": "biopython",
    "Crypto": "pycryptodome",
    "IPython": "ipython",
    "Levenshtein": "levenshtein",
    "MySQLdb": "mysqlclient",
    "OpenGL": "pyopengl",
    "OpenSSL": "pyopenssl",
    "PIL": "pillow",
    "PyPDF2": "pypdf2",
    "SimpleITK": "simpleitk",
    "absl": "absl-py",
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cpuinfo": "py-cpuinfo",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "docx": "python-docx",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu",
    "ffmpeg": "ffmpeg-python",
    "fitz": "pymupdf",
    "git": "gitpython",
    "hydra": "hydra-core",
    "ignite": "pytorch-ignite",
    "imblearn": "imbalanced-learn",
    "jose": "python-jose",
    "jwt": "pyjwt",
    "lightning_fabric": "lightning-fabric",
    "magic": "python-magic",
    "mpl_toolkits": "matplotlib",
    "nacl": "pynacl",
    "pkg_resources": "setuptools",
    "pptx": "python-pptx",
    "psycopg2": "psycopg2-binary",
    "pylab": "matplotlib",
    "pynvml": "nvidia-ml-py",
    "pythonjsonlogger": "python-json-logger",
    "pywt": "pywavelets",
    "rouge_score": "rouge-score",
    "ruamel": "ruamel-yaml",
    "segmentation_models_pytorch": "segmentation-models-pytorch",
    "serial": "pyserial",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "sklearnex": "scikit-learn-intelex",
    "skopt": "scikit-optimize",
    "skvideo": "scikit-video",
    "slugify": "python-slugify",
    "speech_recognition": "speechrecognition",
    "stable_baselines3": "stable-baselines3",
    "tensorboardX": "tensorboardx",
    "tf_keras": "tf-keras",
    "torch_geometric": "torch-geometric",
    "torch_optimizer": "torch-optimizer",
    "umap": "umap-learn",
    "usb": "pyusb",
    "websocket": "websocket-client",
    "yaml": "pyyaml",
    "zmq": "pyzmq",
}
"""Modules whose package has another name, as far as it is not only a matter of case and hyphens."""

_NOT_PROPOSED_TEXT = """
apex clip cupy gi google horovod ldm mmcv osgeo pytorch3d taming torch_cluster torch_scatter torch_sparse wx
args base build cfg checkpoint common conf config configs constants core data dataloader dataloaders dataset engine
evaluation experiment experiments features functions helper helpers infer inference layer layers lib libs logger loss losses main
metric metrics misc model modeling models module modules net nets network networks optim optimizer options params parameters
predict preprocess preprocessing process run runner script scripts settings solver src test tests tool tools train trainer trainers
training transform transforms util utilities utils vis visualization visualize visualizer
"""
NOT_PROPOSED = frozenset(_NOT_PROPOSED_TEXT.split())
"""Modules for which no package is right: the index has another program under the name, several fit, or, in the second part, it is
the usual name of a file that is missing in the upload."""

_KNOWN = SAME | {"lmdb", "redis", "torch", "wget", "xxhash"}
_BETWEEN_NAMES = re.compile(r"[\s/@#=&:?;\[\]<>~!]+")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]*")
_PLAUSIBLE = re.compile(r"[A-Za-z](?:[A-Za-z0-9_]{0,58}[A-Za-z0-9])")


@dataclass(frozen=True, slots=True)
class ProposedPackage:
    """The package to install for a module. ``guessed``: it has the module's name, and whether it is meant is not known."""

    module: str
    package: str
    guessed: bool


def modules_of(packages: Iterable[str]) -> list[str]:
    """Return the modules that packages probably have, by their names: until one is installed, nothing better is known."""
    found: dict[str, None] = {}
    for package in map(canonicalize_name, packages):
        renamed = [module for module, each in RENAMED.items() if each == package]
        found |= dict.fromkeys([*renamed, package.replace("-", "_")])
    return list(found)


def meant_by(line: str) -> frozenset[str]:
    """Return the modules that a line which is not taken may mean, such as ``git+https://github.com/org/name.git#egg=name``."""
    words = (word.removesuffix(".git") for word in _BETWEEN_NAMES.split(line))
    return frozenset(modules_of(word for word in words if _NAME.fullmatch(word)))


def packages_for_imports(modules: Iterable[str]) -> tuple[ProposedPackage, ...]:
    """Return the package for each module, by its first name, in order; no package twice.

    Anyone can publish a package under a free name, also under one that programs often import by mistake. So a package that is
    not in the tables is marked as guessed, and must not be installed before a person has confirmed it.
    """
    found: dict[str, ProposedPackage] = {}
    for module in modules:
        top = module.partition(".")[0]
        package = RENAMED.get(top, "")
        if not package and (top in NOT_PROPOSED or not _PLAUSIBLE.fullmatch(top)):
            continue
        guessed = not package and canonicalize_name(top) not in _KNOWN
        package = package or canonicalize_name(top)
        if package not in found or found[package].guessed > guessed:
            found[package] = ProposedPackage(top, package, guessed)
    return tuple(found.values())
