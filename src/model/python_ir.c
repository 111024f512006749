/* Python runs as another process. Its standard output comes through a pipe; its messages go where ours go. */
#include "model/python_ir.h"

#include "base/log.h"
#include "base/scoped.h"
#include "files/file.h"
#include "ir/module.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* *out: PYTHONPATH with the package's folder, of a build or of a wheel, in front. NULL: no package is beside the program. */
static Status package_path(Arena *arena, const char **out)
{
    static const char *const places[] = {"../python", "../.."};
    const char              *more = getenv("PYTHONPATH");
    char                     self[PATH_MAX];
    ssize_t                  len = readlink("/proc/self/exe", self, sizeof self - 1);
    *out = NULL;
    if (len < 0) return OK;
    self[len] = 0;
    *strrchr(self, '/') = 0;
    for (int i = 0; i < 2; i++) {
        const char *folder = arena_printf(arena, "%s/%s", self, places[i]);
        bool        is_there;
        TRY(file_exists(arena_printf(arena, "%s/surogate/dsl/__main__.py", folder), &is_there));
        if (!is_there) continue;
        *out = arena_printf(arena, "PYTHONPATH=%s%s%s", folder, more ? ":" : "", more ? more : "");
        break;
    }
    return OK;
}

/* Our environment with PYTHONPATH set to package_path. Modules of the current folder aren't imported: the folder may be a model's. */
static Status make_environment(Arena *arena, char ***out_environment)
{
    const char *package;
    TRY(package_path(arena, &package));
    size_t count = 0, kept = 0;
    while (environ[count]) count++;
    char **out = arena_array(arena, char *, count + 3);
    for (size_t i = 0; i < count; i++)
        if (!package || strncmp(environ[i], "PYTHONPATH=", strlen("PYTHONPATH=")) != 0) out[kept++] = environ[i];
    out[kept++] = arena_strdup(arena, "PYTHONSAFEPATH=1");
    if (package) out[kept] = arena_strdup(arena, package);
    *out_environment = out;
    return OK;
}

static Status start(char *const *arguments, char *const *environment, int output, pid_t *out_pid)
{
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
    int error = posix_spawnp(out_pid, arguments[0], &actions, NULL, arguments, environment);
    posix_spawn_file_actions_destroy(&actions);
    FAIL_IF(error, ERR_NOT_FOUND, "can't run %s: %s; install Python 3.10 or later, or name it in SUROGATE_PYTHON", arguments[0],
            strerror(error));
    return OK;
}

/* Reads to the end, or until the text is longer than a module may be. */
static Status read_all(int from, StrBuf *out)
{
    char chunk[1 << 16];
    while (out->len <= IR_MAX_BYTES) {
        ssize_t n = read(from, chunk, sizeof chunk);
        if (n < 0 && errno == EINTR) continue;
        FAIL_IF(n < 0, ERR_IO, "can't read what Python prints: %s", strerror(errno));
        if (n == 0) break;
        strbuf_append(out, chunk, (size_t)n);
    }
    return OK;
}

static Status await(pid_t pid, const char *command)
{
    int state;
    while (waitpid(pid, &state, 0) < 0) FAIL_IF(errno != EINTR, ERR_IO, "%s: %s", command, strerror(errno));
    FAIL_IF(!WIFEXITED(state) || WEXITSTATUS(state) != 0, ERR_INVALID, "%s ended with %s %d; what it says stands above", command,
            WIFEXITED(state) ? "status" : "signal", WIFEXITED(state) ? WEXITSTATUS(state) : WTERMSIG(state));
    return OK;
}

Status python_ir_build(Arena *arena, const char *file, Str *out_json)
{
    const char *named = getenv("SUROGATE_PYTHON"), *python = named && *named ? named : "python3";
    char       *arguments[] = {arena_strdup(arena, python), "-m", "surogate.dsl", "build", arena_strdup(arena, file), NULL};
    const char *command = arena_printf(arena, "%s -m surogate.dsl build %s", python, file);
    SCOPED_STRBUF(text);
    pid_t pid;
    int   ends[2];
    FAIL_IF(pipe2(ends, O_CLOEXEC) != 0, ERR_IO, "%s: no pipe: %s", command, strerror(errno));
    log_info("runs %s", command);
    char **environment;
    Status status = make_environment(arena, &environment);
    if (status == OK) status = start(arguments, environment, ends[1], &pid);
    close(ends[1]);
    if (status == OK) {
        status = read_all(ends[0], &text);
        close(ends[0]); /* ends a process that goes on printing */
        Status ended = await(pid, command);
        if (status == OK && text.len <= IR_MAX_BYTES) status = ended; /* ir_module_parse reports a text that is too long */
    } else {
        close(ends[0]);
    }
    *out_json = (Str){arena_strndup(arena, strbuf_cstr(&text), text.len), text.len};
    return status;
}
