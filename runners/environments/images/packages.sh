# Makes the image of an environment's packages: runs as root in a new container of the base image, without a network, and
# what it leaves is kept as the image. Wheels come from a folder that the host's pip or uv filled, so that no setting of the
# machine (index, proxy, certificates) comes near an image.
#
# /mnt has the wheels. /srv has requirements.txt, check.py, Horovod's wheel if there is one, and perhaps uv, which installs in
# a tenth of the time; where it fails, pip does.
python -m venv /opt/env
{ [ -x /srv/uv ] && /srv/uv pip install --no-config --no-cache --link-mode copy --python /opt/env/bin/python \
      --no-index --find-links /mnt -r /srv/requirements.txt; } ||
    /opt/env/bin/pip install --no-index --no-cache-dir --find-links /mnt -r /srv/requirements.txt
for wheel in /srv/*.whl; do
    [ ! -e "$wheel" ] || /opt/env/bin/pip install --no-index --no-deps "$wheel"
done
# The check also leaves the bytecode of what most jobs import: compiling all packages would take half a minute.
cd /tmp
/opt/env/bin/python /srv/check.py
# no-new-privileges makes them useless already; here there is nothing left to be useless.
find / -xdev -type f -perm /6000 -exec chmod a-s {} +
