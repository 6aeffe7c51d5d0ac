"""Prints "MODE.FUNCTION INSTRUCTIONS CALLS", a round, of a run of calls.c: calls.py STRACE OBJECT MODE ROUNDS CALLGRIND_FILE..."""
import pathlib, re, subprocess, sys

strace, name, mode, rounds, *files = sys.argv[1:]
calls, current = {}, None
for line in open(strace):
    mark = re.match(r'write\(-1, (?:"(\w*)"|"")', line)
    if mark:
        current = mark.group(1)
    elif current:
        calls[current] = calls.get(current, 0) + 1
for file in files:
    function = re.search(r"^desc: Trigger: Client Request: (\w+)", pathlib.Path(file).read_text(), re.M)
    if function:
        library = pathlib.Path(__file__).with_name("library.py")
        instructions = subprocess.run([sys.executable, library, file, name], capture_output=True, text=True, check=True).stdout
        print("%-32s %7.0f %6.2f" % (f"{mode}.{function[1]}", int(instructions) / int(rounds), calls.get(function[1], 0) / int(rounds)))
