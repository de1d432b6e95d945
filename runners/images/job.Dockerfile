# What jobs run in: an environment's packages and the program that is PID 1. Only this layer changes with our code.
# The check also leaves the bytecode of what most jobs import: compiling all packages would take half a minute.
ARG PACKAGES_IMAGE
FROM ${PACKAGES_IMAGE}
ARG CHECK=pass
COPY schedulearn /opt/schedulearn
RUN python -m compileall -q /opt/schedulearn && cd /tmp && python -c "$CHECK"
WORKDIR /opt/schedulearn
USER 65534:65534
