"""What packages of conda are called on the package index, for those that are the same software under a known name."""

from packaging.utils import canonicalize_name

_SAME_TEXT = """
absl-py accelerate aiohttp albumentations altair anndata anyio arviz astropy asttokens attrs autograd beautifulsoup4
bitsandbytes black bokeh boto3 catboost certifi cffi charset-normalizer click cloudpickle colorama colorlog contourpy
coverage cryptography cvxpy cycler cython dask datasets decorator deepspeed diffusers dill diskcache distributed
docopt docutils dominate e3nn einops environs evaluate faiss-cpu fastapi fastparquet ffmpeg-python filelock fire
flake8 flask flax fonttools fsspec ftfy fvcore gdown gensim geopandas gitpython gpytorch gradio gym gymnasium h5py
hdbscan httpx huggingface-hub hydra-core hyperopt hypothesis idna imageio imageio-ffmpeg imbalanced-learn imgaug
importlib-metadata iopath ipdb ipykernel ipython ipywidgets isort jax jaxlib jinja2 joblib jsonlines jsonschema
jupyter jupyterlab keras kiwisolver kornia librosa lightgbm lightning lightning-utilities llvmlite loguru lxml lz4
markdown markupsafe matplotlib mdtraj mlflow monai more-itertools mpmath msgpack multiprocess mypy natsort nbconvert
nbformat networkx nibabel nltk notebook numba numexpr numpy omegaconf onnx onnxruntime openai openpyxl opt-einsum
optax optuna orjson packaging pandas papermill peft pillow pip-tools plotly polars pooch portalocker pre-commit
prettytable protobuf psutil py-cpuinfo pyarrow pycocotools pydantic pydicom pydot pygments pymongo pyparsing pypdf
pytest pytest-cov python-dateutil python-dotenv python-levenshtein pytorch-ignite pytorch-lightning
pytorch-metric-learning pytz pywavelets pyyaml pyzmq rapidfuzz ray rdkit regex requests rich ruamel.yaml ruff s3fs
sacrebleu sacremoses safetensors scanpy scikit-image scikit-learn scikit-optimize scipy seaborn sentence-transformers
sentencepiece sentry-sdk setuptools shap shapely simpleitk six snakeviz sortedcontainers soundfile spacy sqlalchemy
statsmodels sympy tabulate tensorboard tensorboardx tensorflow tensorflow-datasets tensorflow-hub
tensorflow-probability termcolor tifffile tiktoken timm tokenizers toml tomli toolz torchaudio torchdata torchinfo
torchio torchmetrics torchtext torchvision tornado tqdm traitlets transformers trimesh triton typeguard typer
typing-extensions tzdata umap-learn urllib3 wandb wordcloud wrapt xarray xgboost xlrd yacs zarr zstandard
"""
SAME = frozenset(canonicalize_name(name) for name in _SAME_TEXT.split())
"""Names that conda and the package index give to the same software."""

RENAMED = {
    "pytorch": "torch",
    "pytorch-cpu": "torch",
    "pytorch-gpu": "torch",
    "tensorflow-cpu": "tensorflow",
    "tensorflow-gpu": "tensorflow",
    "keras-gpu": "keras",
    "opencv": "opencv-python-headless",
    "py-opencv": "opencv-python-headless",
    "libopencv": "opencv-python-headless",
    "matplotlib-base": "matplotlib",
    "seaborn-base": "seaborn",
    "dask-core": "dask",
    "ray-default": "ray",
    "ray-tune": "ray",
    "ray-train": "ray",
    "py-xgboost": "xgboost",
    "py-xgboost-gpu": "xgboost",
    "xgboost-gpu": "xgboost",
    "pyg": "torch-geometric",
    "pytables": "tables",
    "msgpack-python": "msgpack",
    "python-graphviz": "graphviz",
    "pysoundfile": "soundfile",
    "faiss": "faiss-cpu",
    "pytorch-geometric": "torch-geometric",
    "python-lmdb": "lmdb",
    "python-wget": "wget",
    "python-xxhash": "xxhash",
    "redis-py": "redis",
    "pyqt": "pyqt5",
    "nvidia-ml": "nvidia-ml-py",
    "pynvml": "nvidia-ml-py",
}

_LEFT_OUT_TEXT = """
aws-c-common binutils blas brotlipy bzip2 ca-certificates cmake conda conda-build cuda cudatoolkit cudnn cupti dbus
expat ffmpeg fontconfig freetype gcc giflib git git-lfs glib gmp gnutls gxx hdf5 icu intel-openmp jpeg krb5 lame lcms2
ld-impl-linux-64 lerc libedit libev libffi libgcc-ng libgomp libpng libstdcxx-ng libtiff libwebp libwebp-base
llvm-openmp lz4-c make mamba mkl mkl-fft mkl-include mkl-random mkl-service nccl ncurses nettle ninja nomkl openblas
openh264 openjpeg openssl pcre pip python-abi pytorch-cuda pytorch-mutex readline redis snappy sqlite tbb tk
torchtriton unixodbc wget wheel x264 xz yaml zlib zstd
"""
LEFT_OUT = frozenset(_LEFT_OUT_TEXT.split())
"""What comes with Python packages, with the base, or with the machine."""

LEFT_OUT_PREFIXES = (
    "_",
    "cuda-",
    "lib",
    "nvidia-",
    "aws-",
    "gcc-",
    "gxx-",
    "binutils-",
    "xorg-",
    "sysroot-",
    "gst",
    "qt-",
)


def index_name(name: str) -> str | None:
    """Return the name on the package index; empty for what is not needed; None for what is not known."""
    known = canonicalize_name(name)
    if known in RENAMED:
        return RENAMED[known]
    if known in SAME:
        return known
    return "" if known in LEFT_OUT or name.startswith(LEFT_OUT_PREFIXES) else None
