/* Passes work on any text of a graph, with any options, or refuse it: each pass alone, each twice, and the passes of training in order. */
#include "passes/alone.h"
#include "passes/pass.h"

#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Each pass must give a graph that verifies. */
static void run(const uint8_t *data, size_t size, const char *const *names, size_t count)
{
    Arena  arena = {0};
    StrBuf out = {0}, again = {0};
    Status status = passes_run_alone(&arena, "fuzz", (const char *)data, size, names, count, &out);
    if (status == OK)
        status = passes_run_alone(&arena, "again", out.data, out.len, names, 0, &again);
    else if (status != ERR_INTERNAL)
        status = OK;
    if (status != OK) {
        fprintf(stderr, "%s: %s\n%s", names[0], status_message(), strbuf_cstr(&out));
        abort();
    }
    strbuf_deinit(&out);
    strbuf_deinit(&again);
    arena_deinit(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *train[] = {"adapt", "fuse", "autodiff", "clean", "recompute", "schedule", "place", "emit"};
    for (int i = 0; i < pass_count(); i++) {
        const char *twice[] = {pass_name(i), pass_name(i)};
        run(data, size, twice, 1);
        run(data, size, twice, 2);
    }
    run(data, size, train, sizeof train / sizeof train[0]);
    return 0;
}
