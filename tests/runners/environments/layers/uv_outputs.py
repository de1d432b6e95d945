"""What uv 0.13.9 printed in November 2026 when it failed, as it was seen."""

BASE_DIRECT = """\
error: No solution found when resolving dependencies
  cause: Because you require torch==2.9.1 and torch==2.13.0+cpu, we can conclude that your requirements are unsatisfiable.
"""
BASE_RANGE = """\
error: No solution found when resolving dependencies
  cause: Because you require numpy<2 and numpy==2.4.6, we can conclude that your requirements are unsatisfiable.
"""
BASE_THROUGH_ANOTHER = """\
error: No solution found when resolving dependencies
  cause: Because torchvision==0.20.0 depends on torch==2.5.0 and torch==2.13.0+cpu, we can conclude that torchvision==0.20.0 cannot be used.
         And because you require torchvision==0.20.0, we can conclude that your requirements are unsatisfiable.
"""
BASE_THROUGH_ANY_VERSION = """\
error: No solution found when resolving dependencies
  cause: Because all versions of neednp depend on numpy<2 and numpy==2.4.6, we can conclude that all versions of neednp cannot be used.
         And because you require neednp, we can conclude that your requirements are unsatisfiable.
"""
LIST_DIRECT = """\
error: No solution found when resolving dependencies
  cause: Because you require rich==13.0.0 and rich>=14, we can conclude that your requirements are unsatisfiable.
"""
LIST_THROUGH_OTHERS = """\
error: No solution found when resolving dependencies
  cause: Because all versions of bbb depend on ccc>=2 and all versions of aaa depend on ccc<2, we can conclude that all versions of aaa and all versions of bbb are incompatible.
         And because you require aaa and bbb, we can conclude that your requirements are unsatisfiable.
"""
NO_PACKAGE = """\
error: No solution found when resolving dependencies
  cause: Because nosuchpackage-xyzzy-1 was not found in the package registry and you require nosuchpackage-xyzzy-1, we can conclude that your requirements are unsatisfiable.
"""
NO_PACKAGE_OF_ANOTHER = """\
error: No solution found when resolving dependencies
  cause: Because zzzznot was not found in the provided package locations and all versions of ddd depend on zzzznot, we can conclude that all versions of ddd cannot be used.
         And because you require ddd, we can conclude that your requirements are unsatisfiable.
"""
NO_VERSION = """\
error: No solution found when resolving dependencies
  cause: Because there is no version of rich==99.1 and you require rich==99.1, we can conclude that your requirements are unsatisfiable.
"""
ONLY_SOURCE = """\
error: No solution found when resolving dependencies
  cause: Because gym==0.21.0 has no usable wheels and you require gym==0.21.0, we can conclude that your requirements are unsatisfiable.

hint: Wheels are required for `gym` because building from source is disabled for all packages (i.e., with `--no-build`)
"""
ONLY_SOURCE_OF_ANOTHER = """\
error: No solution found when resolving dependencies
  cause: Because simplegeneric==0.8.1 has no usable wheels and only the following versions of simplegeneric are available:
             simplegeneric<=0.8
             simplegeneric==0.8.1
         we can conclude that simplegeneric>0.8 cannot be used.
         And because ipython==7.0.0 depends on simplegeneric>0.8 and you require ipython==7.0, we can conclude that your requirements are unsatisfiable.

hint: Wheels are required for `simplegeneric` because building from source is disabled for all packages (i.e., with `--no-build`)
"""
ONLY_SOURCE_EVER = """\
error: No solution found when resolving dependencies
  cause: Because all versions of flash-attn have no usable wheels and you require flash-attn, we can conclude that your requirements are unsatisfiable.

hint: Wheels are required for `flash-attn` because building from source is disabled for all packages (i.e., with `--no-build`)
"""
OTHER_ABI = """\
error: No solution found when resolving dependencies
  cause: Because tensorflow==2.10.0 has no wheels with a matching Python ABI tag (e.g., `cp311`) and you require tensorflow==2.10.0, we can conclude that your requirements are unsatisfiable.

hint: You require CPython 3.11 (`cp311`), but we only found wheels for `tensorflow` (v2.10.0) with the following Python ABI tags: `cp37m`, `cp38`, `cp39`, `cp310`
"""
OTHER_PLATFORM = """\
error: No solution found when resolving dependencies
  cause: Because pywin32<=302 has no wheels with a matching Python ABI tag (e.g., `cp311`) and only the following versions of pywin32 are available:
             pywin32<=302
             pywin32>=303
         we can conclude that pywin32<303 cannot be used.
         And because pywin32>=303 has no wheels with a matching platform tag (e.g., `manylinux_2_36_x86_64`) and you require pywin32, we can conclude that your requirements are unsatisfiable.

hint: You require CPython 3.11 (`cp311`), but we only found wheels for `pywin32` (v302) with the following Python ABI tags: `cp36m`, `cp37m`, `cp38`, `cp39`, `cp310`

hint: Wheels are available for `pywin32` (v312) on the following platforms: `win32`, `win_amd64`, `win_arm64`
"""
NEEDS_PYTHON = """\
error: No solution found when resolving dependencies
  cause: Because newpy==1.0 requires Python >=3.13 and only newpy==1.0 is available, we can conclude that all versions of newpy cannot be used.
         And because all versions of useit depend on newpy and you require useit, we can conclude that your requirements are unsatisfiable.
"""
CONNECTION_REFUSED = """\
error: Failed to fetch: http://127.0.0.1:9/simple/six/
  cause: error sending request for url (http://127.0.0.1:9/simple/six/)
  cause: client error (Connect)
  cause: tcp connect error
  cause: Connection refused (os error 111)
"""
NO_SUCH_HOST = """\
error: Failed to fetch: https://index.example/simple/six/
  cause: error sending request for url (https://index.example/simple/six/)
  cause: client error (Connect)
  cause: dns error
  cause: error resolving DNS
  cause: failed to lookup address information: Name or service not known
"""
SERVER_ERROR = """\
error: Failed to fetch: http://127.0.0.1:8912/503/six/
  cause: HTTP status server error (503 Service Unavailable) for url (http://127.0.0.1:8912/503/six/)
"""
HASH_MISMATCH = """\
Resolved 1 package in 1ms
error: Failed to download `six==1.0`
  cause: Hash mismatch for `six==1.0`

         Expected:
           sha256:0000000000000000000000000000000000000000000000000000000000000000

         Computed:
           sha256:a1ac414a337210b0c023705dd7952522e8979776127310eb79a332d5b809379e
"""
NO_SPACE = """\
Resolved 1 package in 60ms
Downloading pandas (11.8MiB)
error: Failed to download `pandas==3.1.1`
  cause: Failed to extract archive: pandas-3.1.1-cp311-cp311-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl
  cause: I/O operation failed during extraction
  cause: failed to write to file `/build/cache/.tmpnaEgRP/pandas/_libs/hashtable.cpython-311-x86_64-linux-gnu.so`: No space left on device (os error 28)
"""
BUILD_FAILED = """\
error: Failed to build `gym==0.21.0`
  cause: The build backend returned an error
  cause: Call to `setuptools.build_meta:__legacy__.get_requires_for_build_wheel` failed (exit status: 1)

         [stderr]
         /build/cache/builds-v0/.tmpyyWtZm/lib/python3.11/site-packages/setuptools/_distutils/dist.py:318: UserWarning: Unknown distribution option: 'tests_require'
           warnings.warn(msg)
         error in gym setup command: 'extras_require' must be a dictionary whose values are strings or lists of strings containing valid project/version requirement specifiers.

hint: Build failures usually indicate a problem with the package or the build environment
"""
