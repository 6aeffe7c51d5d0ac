#!/bin/bash
# Expected: setting `flags` of a futex sets its flags. The type stubs of the package declare that property, and the note
# in its source says that the setter overwrites `.flags`.
# Seen: it overwrites `val`, the value that a waiter expects in the futex. `flags` stays as it was. So a wait for 0 on a
# futex that is 0 ends with EAGAIN after its flags were set, even to what they were; without that it waits, as
# futex_waitv(2) does.
# Versions: liburing 2026.3.30 (PyPI). Needs a kernel from 6.7 on that serves io_uring. Seen 2026-11-30.
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
python3 -m pip install -q --disable-pip-version-check --root-user-action=ignore --no-deps --only-binary :all: \
    --target "$tmp/lib" liburing==2026.3.30

cat > "$tmp/check.py" <<'PY'
import errno, sys
import liburing as uring


def wait(futex):
    """Submits a wait for the futex, and returns its error, or what the wait for its completion raised."""
    ring, cqe = uring.Ring(), uring.Cqe()
    uring.io_uring_queue_init(4, ring)
    try:
        uring.io_uring_prep_futex_waitv(uring.io_uring_get_sqe(ring), futex)
        uring.io_uring_submit(ring)
        uring.io_uring_wait_cqe_timeout(ring, cqe, uring.timespec(0.5))
        return f"completed, res {cqe[0].res}"
    except OSError as error:
        return errno.errorcode[error.errno]
    finally:
        uring.io_uring_queue_exit(ring)


SHARED, PRIVATE = uring.FUTEX2_SIZE_U32, uring.FUTEX2_SIZE_U32 | uring.FUTEX2_PRIVATE
plain = uring.Futex(1, SHARED, True)
first = [(plain[0].val, plain[0].flags), wait(plain)]
print(f"untouched: (val, flags) {first[0]}; wait: {first[1]}")

same = uring.Futex(1, SHARED, True)
same[0].flags = SHARED
second = [(same[0].val, same[0].flags), wait(same)]
print(f"flags = {SHARED}: (val, flags) {second[0]}; wait: {second[1]}")

other = uring.Futex(1, SHARED, True)
other[0].val = 5
other[0].flags = PRIVATE
third = (other[0].val, other[0].flags)
print(f"val = 5, flags = {PRIVATE}: (val, flags) {third}")
sys.exit(first != [(0, 2), "ETIME"] or second != [(2, 2), "EAGAIN"] or third != (130, 2))
PY
PYTHONPATH="$tmp/lib" timeout 60 python3 "$tmp/check.py"
