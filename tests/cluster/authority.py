"""A certificate authority made for one test run, and a certificate for the portal's address in it."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PEM = serialization.Encoding.PEM
DAYS = 400
"""Either side of now: clocks jump in these tests."""


def make_authority(folder: Path, addresses: list[str]) -> tuple[Path, Path, Path]:
    """Paths of the authority's certificate, of the portal's, and of the portal's key."""
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Schedulearn tests")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "portal")])
    now = datetime.now(UTC)

    def begun(name: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(issuer).public_key(public)
        builder = builder.serial_number(x509.random_serial_number())
        return builder.not_valid_before(now - timedelta(days=DAYS)).not_valid_after(now + timedelta(days=DAYS))

    authority = begun(issuer, ca_key.public_key()).add_extension(x509.BasicConstraints(True, 0), critical=True)
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address(address)) for address in addresses])
    portal = begun(subject, key.public_key()).add_extension(names, critical=False)
    ca_file, cert_file, key_file = (folder / name for name in ("ca.pem", "portal.pem", "portal.key"))
    ca_file.write_bytes(authority.sign(ca_key, hashes.SHA256()).public_bytes(PEM))
    cert_file.write_bytes(portal.sign(ca_key, hashes.SHA256()).public_bytes(PEM))
    plain = serialization.NoEncryption()
    key_file.write_bytes(key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, plain))
    key_file.chmod(0o600)
    return ca_file, cert_file, key_file
