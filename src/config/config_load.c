/* Loads a Config from a file or the command line. */
#include "config/value.h"
#include "files/file.h"

#include <string.h>

/* path NULL: there is no file, only overrides. */
static Status load(const char *path, const char *const *overrides, size_t num_overrides, Config *out, StrBuf *problems)
{
    Arena  scratch = {0};
    Str    text = {"", 0};
    Status status = path ? file_read_stream(&scratch, path, YAML_MAX_BYTES, &text) : OK;
    if (status == OK)
        status = config_parse(path ? path : "arguments", text.data, text.len, overrides, num_overrides, out, problems);
    else if (problems)
        strbuf_printf(problems, "%s\n", status_message());
    arena_deinit(&scratch);
    return status;
}

static bool is_yaml_name(const char *text)
{
    size_t len = strlen(text);
    return (len > 5 && strcmp(text + len - 5, ".yaml") == 0) || (len > 4 && strcmp(text + len - 4, ".yml") == 0) ||
           (len > 5 && strcmp(text + len - 5, ".json") == 0);
}

const char *config_run_file(const char *const *args, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(args[i], "--config") == 0) return i + 1 < count ? args[i + 1] : NULL;
        if (strncmp(args[i], "--config=", 9) == 0) return args[i] + 9;
        if (!strchr(args[i], '=') && is_yaml_name(args[i])) return args[i];
    }
    return NULL;
}

Status config_load_args(const char *const *args, size_t count, Config *out, StrBuf *problems)
{
    Arena       scratch = {0};
    const char *path = NULL, **overrides = arena_array(&scratch, const char *, count);
    size_t      num_overrides = 0;
    bool        allow_python = false;
    Status      status = OK;
    for (size_t i = 0; i < count && status == OK; i++) {
        const char *arg = args[i], *file = NULL;
        if (strcmp(arg, "--config") == 0) {
            if (i + 1 < count)
                file = args[++i];
            else
                status = status_fail(ERR_INVALID, "--config: a file name must follow");
        } else if (strncmp(arg, "--config=", 9) == 0) {
            file = arg + 9;
        } else if (strcmp(arg, CONFIG_ALLOW_PYTHON) == 0) {
            allow_python = true;
        } else if (strchr(arg, '=')) {
            overrides[num_overrides++] = arg + (strncmp(arg, "--", 2) == 0 ? 2 : 0);
        } else if (is_yaml_name(arg)) {
            file = arg;
        } else {
            status = status_fail(ERR_INVALID, "argument \"%.200s\": expected a run file (.yaml), --config FILE or key=value", arg);
        }
        if (file && path) status = status_fail(ERR_INVALID, "two run files, %s and %s; give one", path, file);
        if (file) path = file;
    }
    if (status == OK) {
        status = load(path, overrides, num_overrides, out, problems);
        if (status == OK) out->allow_python = allow_python;
    } else if (problems) {
        strbuf_printf(problems, "%s\n", status_message());
    }
    arena_deinit(&scratch);
    return status;
}

Status config_require(const Config *config, ConfigKey key, const char *what_for)
{
    CHECK(options[key].scope == SCOPE_run);
    FAIL_IF(!config->origin[key], ERR_INVALID, "%s needs the key %s: put \"%s: ...\" into the run file or %s=... on the command line",
            what_for, options[key].name, options[key].name, options[key].name);
    return OK;
}

bool config_is_argument(const char *origin)
{
    return strncmp(origin, ARGUMENT_SOURCE, strlen(ARGUMENT_SOURCE)) == 0;
}

Status config_at(const char *const *origin, ConfigKey key, Status status)
{
    const char *place = origin[key];
    if (status == OK || !place || config_is_argument(place)) return status;
    return status_prefix(status, "%s", place);
}
