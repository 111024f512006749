/* surogate pull ORG/NAME: downloads a model or dataset from the hub into the cache, and prints its folder on stdout. */
#include "cli/cli.h"

#include "files/hub.h"

#include <string.h>

enum { MAX_PATTERNS = 64 };

Status cmd_pull(CliArgs *args)
{
    const char *revision = NULL, *include = NULL, *patterns[MAX_PATTERNS + 1] = {0};
    bool        dataset = false, all = false, done;
    const Flag  flags[] = {
         {"--revision", FLAG_TEXT, &revision, "NAME", "branch, tag or commit (main)"},
         {"--dataset", FLAG_SWITCH, &dataset, NULL, "the repository is a dataset"},
         {"--include", FLAG_TEXT, &include, "GLOB,...", "files to download; !GLOB excludes some (those that training reads)"},
         {"--all", FLAG_SWITCH, &all, NULL, "every file"},
    };
    TRY(cli_parse(args, flags, sizeof flags / sizeof *flags, false, &done));
    if (done) return OK;
    TRY(cli_want_words(args, 1));
    FAIL_IF(all && include, ERR_INVALID, "surogate pull: --all and --include exclude each other");
    size_t count = 0;
    for (const char *at = include; at && *at;) {
        size_t len = strcspn(at, ",");
        FAIL_IF(count == MAX_PATTERNS, ERR_INVALID, "surogate pull: --include takes at most %d patterns", MAX_PATTERNS);
        if (len) patterns[count++] = arena_strndup(&args->arena, at, len);
        at += len + (at[len] == ',');
    }
    StrBuf dir = {0};
    Status status = hub_resolve(dataset ? HUB_DATASET : HUB_MODEL, args->words[0], revision,
                                all       ? NULL
                                : include ? patterns
                                : dataset ? hub_dataset_files
                                          : hub_model_files,
                                &dir);
    if (status == OK) {
        strbuf_putc(&dir, '\n');
        status = cli_print(&dir);
    }
    strbuf_deinit(&dir);
    return status;
}
