"""What an environment offers by its import name is what its requirements install."""

import pytest

from runners.environments import images

IMPORT_NAMES = {
    "absl_py": "absl",
    "google_auth": "google",
    "google_pasta": "pasta",
    "grpcio": "grpc",
    "ipython": "IPython",
    "libclang": "clang",
    "opencv_python_headless": "cv2",
    "pillow": "PIL",
    "protobuf": "google",
    "pyyaml": "yaml",
    "scikit_image": "skimage",
    "scikit_learn": "sklearn",
    "tensorflow_cpu": "tensorflow",
}


@pytest.mark.parametrize("entry", images.catalogue(), ids=lambda entry: entry.key)
def test_an_environment_offers_all_that_it_installs(entry: images.Entry) -> None:
    """What is not listed is reported as missing before a job, and after one its user reads that no environment has it."""
    pinned = [line for line in entry.requirements.read_text().splitlines() if "==" in line]
    names = [line.split("==")[0].split("[")[0].lower().replace("-", "_") for line in pinned]
    assert {IMPORT_NAMES.get(name, name) for name in names} <= set(entry.packages)
