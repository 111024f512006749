/* See ray.h. */
#include "cli/ray.h"

#include "base/log.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void put_text(StrBuf *out, const char *name, const char *value)
{
    strbuf_printf(out, "\"%s\": ", name);
    if (value)
        json_write_string(out, value, strlen(value));
    else
        strbuf_puts(out, "null");
    strbuf_puts(out, ", ");
}

/* The JSON of Settings in python/surogate/ray.py. */
static const char *settings_json(Arena *arena, const Config *config)
{
    StrBuf  text = {0};
    char    program[PATH_MAX] = "";
    ssize_t len = readlink("/proc/self/exe", program, sizeof program - 1);
    strbuf_putc(&text, '{');
    put_text(&text, "program", len > 0 ? program : "surogate");
    put_text(&text, "address", config->ray_address ? config->ray_address : "auto");
    put_text(&text, "worker_output_dir", config->worker_output_dir);
    put_text(&text, "dataset_cache_dir", config->dataset_cache_dir);
    put_text(&text, "resume", config->resume_from_checkpoint);
    put_text(&text, "device", choice_text(config->device));
    put_text(&text, "output_dir", config->output_dir);
    strbuf_printf(&text, "\"num_nodes\": %lld, \"ranks_per_node\": %lld, \"micro_batches\": %lld, \"max_restarts\": %lld}",
                  (long long)config->num_nodes, (long long)(config->gpus_per_node ? config->gpus_per_node : config->gpus),
                  (long long)config->gradient_accumulation_steps, (long long)config->max_restarts);
    const char *copy = arena_strdup(arena, strbuf_cstr(&text));
    strbuf_deinit(&text);
    return copy;
}

Status ray_start(CliArgs *args, const Config *config)
{
    const char  *told = getenv("SUROGATE_PYTHON"), *python = told && *told ? told : "python3";
    const char **line = arena_array(&args->arena, const char *, args->argc + 8);
    int          count = 0;
    FAIL_IF(config->world_size > 1, ERR_INVALID,
            "world_size: %lld on Ray, which numbers the processes itself; leave out world_size, rank and rendezvous, or ray_address",
            (long long)config->world_size);
    for (const char *const *word = (const char *const[]){python, "-m", "surogate.ray", "--settings", NULL}; *word; word++)
        line[count++] = *word;
    line[count++] = settings_json(&args->arena, config);
    line[count++] = args->command;
    for (int i = 0; i < args->argc; i++)
        if (strcmp(args->argv[i], RAY_FLAG) != 0) line[count++] = args->argv[i];
    line[count] = NULL;
    log_info("starting on Ray: %s -m surogate.ray", python);
    execvp(python, (char *const *)line);
    FAIL(ERR_NOT_FOUND,
         "ray_address: cannot start %s: %s. A run on Ray needs Python with Ray on this machine: pip install surogate[ray], "
         "or set SUROGATE_PYTHON to a Python that has it",
         python, strerror(errno));
}
