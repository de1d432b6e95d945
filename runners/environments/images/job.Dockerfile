# What jobs run in: an environment's packages and the program that is PID 1. Only this layer changes with our code.
ARG PACKAGES_IMAGE
FROM ${PACKAGES_IMAGE}
COPY schedulearn /opt/schedulearn
RUN python -m compileall -q /opt/schedulearn
WORKDIR /opt/schedulearn
USER 65534:65534
