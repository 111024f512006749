"""A terminal of COLUMNS columns: runs a command on it and prints the final screen, line by line.

Text beyond the right edge continues in a line that begins with ">".

    python3 tests/terminal.py COLUMNS RAW [--type FILE] COMMAND...     RAW: file for the received bytes

FILE says what is typed: lines of JSON, ["pattern", "keys"]. The keys are typed when the pattern is found in the bytes received since the
last keys.
"""
import fcntl
import json
import os
import pty
import re
import struct
import sys
import termios


def run(columns, command, keys):
    pid, fd = pty.fork()
    if pid == 0:
        os.execvp(command[0], command)
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    output, seen = b"", 0
    while True:
        while keys and (found := re.search(keys[0][0].encode(), output[seen:], re.S)):
            seen += found.end()
            os.write(fd, keys.pop(0)[1].encode())
        try:
            chunk = os.read(fd, 65536)
        except OSError:
            break
        if not chunk:
            break
        output += chunk
    return output, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def screen(text, columns):
    lines, column = [""], 0
    for token in re.findall(r"\x1b\[[0-9;]*[A-Za-z]|.", text, re.S):
        line = lines[-1]
        if token == "\r":
            column = 0
        elif token == "\n":
            lines.append("")
        elif token == "\x1b[K":
            lines[-1] = line[:column]
        elif token.startswith("\x1b"):
            pass
        else:
            if column == columns:
                lines.append(">")
                line, column = ">", 0
            at = column + line.startswith(">")
            lines[-1] = line[:at].ljust(at) + token + line[at + 1:]
            column += 1
    return lines


columns, raw, command, keys = int(sys.argv[1]), sys.argv[2], sys.argv[3:], []
if command[0] == "--type":
    with open(command[1]) as file:
        keys = [json.loads(line) for line in file]
    command = command[2:]
output, status = run(columns, command, keys)
with open(raw, "wb") as file:
    file.write(output)
print("\n".join(screen(output.decode(), columns)))
if keys:
    sys.exit(f"not typed, since it didn't come: {keys[0][0]}")
sys.exit(status)
