# The packages of one environment. Built offline from a context of wheels that the host's pip fetched, so that no
# setting of the machine (index, proxy, certificates) comes near an image. Changes only with the recipe.
#
# By hand: docker build -f packages.Dockerfile --build-arg BASE_IMAGE=... CONTEXT
#          CONTEXT holds requirements.txt, wheels/*.whl and own/*.whl (Horovod; may be empty but for a .keep). If own/uv
#          is there, that program installs in a tenth of the time; where it fails, pip does.
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS build
LABEL schedulearn.stage=build
COPY wheels /wheels
COPY own /own
COPY requirements.txt /requirements.txt
RUN python -m venv /opt/env \
    && if [ -f /own/uv ]; then chmod 755 /own/uv; fi \
    && { /own/uv pip install --no-config --no-cache --python /opt/env/bin/python \
             --no-index --find-links /wheels -r /requirements.txt \
         || /opt/env/bin/pip install --no-index --no-cache-dir --find-links /wheels -r /requirements.txt; } \
    && for wheel in /own/*.whl; do [ ! -e "$wheel" ] || /opt/env/bin/pip install --no-index --no-deps "$wheel" || exit 1; done

FROM ${BASE_IMAGE}
# no-new-privileges makes them useless already; here there is nothing left to be useless.
RUN find / -xdev -type f -perm /6000 -exec chmod a-s {} +
COPY --from=build /opt/env /opt/env
ENV PATH=/opt/env/bin:$PATH
