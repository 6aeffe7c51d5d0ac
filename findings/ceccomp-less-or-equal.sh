#!/bin/bash
# Expected: ceccomp's listing of a seccomp filter says what the kernel does. `if ($A <= 100) goto 4` should jump at 100.
# The kernel's Documentation/networking/filter.rst defines the two instructions: BPF_JGE jumps if A >= K, so its false
# branch is "less"; BPF_JGT jumps if A > K, so its false branch is "less or equal".
# Seen: ceccomp swaps the two. It lists the false branch of BPF_JGE as `<=`, and that of BPF_JGT as `<`. Its emulator
# follows the listing: at the boundary it answers the opposite of the kernel. Its assembler makes the same exchange.
# Versions: ceccomp 3.5 (PyPI, x86-64 wheel). Needs a kernel with seccomp filters. Seen 2026-11-29.
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
python3 -m pip install -q --disable-pip-version-check --root-user-action=ignore --no-deps --target "$tmp/lib" \
    ceccomp==3.5
chmod +x "$tmp/lib/ceccomp/ceccomp"

cat > "$tmp/check.py" <<'PY'
import ctypes, os, struct, subprocess, sys

tmp = sys.argv[1]
ceccomp = os.path.join(tmp, "lib/ceccomp/ceccomp")
LOAD, JGT, JGE, RETURN = 0x20, 0x25, 0x35, 0x06
REFUSE, ALLOW = 0x00050001, 0x7FFF0000  # SECCOMP_RET_ERRNO | EPERM, SECCOMP_RET_ALLOW
BOUNDARY = 100  # times(2) on x86-64


def program(jump):
    """Calls for which the jump's condition holds are refused with EPERM, all others are allowed."""
    instructions = [(LOAD, 0, 0, 0), (jump, 0, 1, BOUNDARY), (RETURN, 0, 0, REFUSE), (RETURN, 0, 0, ALLOW)]
    return b"".join(struct.pack("<HBBI", *i) for i in instructions)


def kernel(code):
    """What a child process gets for call number 100 under this filter."""
    pid = os.fork()
    if pid:
        return ("allowed", "refused")[os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])]
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(code, len(code))
    fprog = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    if libc.prctl(22, 2, ctypes.c_char_p(fprog), 0, 0):  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
        os._exit(9)
    os._exit(libc.syscall(BOUNDARY, None) == -1 and ctypes.get_errno() == 1)


def run(*arguments, text=None):
    return subprocess.run([ceccomp, *arguments], input=text, capture_output=True, check=True).stdout


failed = False
for name, jump, shown in (("BPF_JGE", JGE, "<="), ("BPF_JGT", JGT, "<")):
    code = program(jump)
    listing = run("disasm", text=code)
    line = next(l for l in listing.decode().splitlines() if "goto" in l).split("if ", 1)[1]
    with open(os.path.join(tmp, "listing"), "wb") as file:
        file.write(listing)
    emulated = run("emu", "-q", os.path.join(tmp, "listing"), str(BOUNDARY)).decode().strip()
    truth = kernel(code)
    print(f"{name} 100: listed as `if {line}`; call 100: kernel {truth}, ceccomp emu {emulated!r}")
    wrong = {"refused": "return ALLOW", "allowed": "return ERRNO(1)"}[truth]
    failed |= f"$A {shown} " not in line or emulated != wrong

text = b"$A = $syscall_nr\nif ($A <= 100) goto 4\nreturn ERRNO(1)\nreturn ALLOW\n"
assembled = run("asm", "-f", "raw", text=text)
truth = kernel(assembled)
print(f"`if ($A <= 100) goto 4` (allow) assembled: call 100: kernel {truth}")
failed |= assembled != program(JGE) or truth != "refused"
sys.exit(failed)
PY
timeout 60 python3 "$tmp/check.py" "$tmp"
