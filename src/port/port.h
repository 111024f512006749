/* Run files of Axolotl, LLaMA-Factory and TRL as ours: every key is looked up in foreign.def, absent ones get that tool's default. */
#pragma once

#include "config/config.h"

typedef struct PortOptions {
    const char *from;        /* axolotl, llamafactory, llamafactory-v1, trl; NULL: by the keys of the file */
    const char *dataset_dir; /* folder of LLaMA-Factory's dataset_info.json; NULL: as the file says */
} PortOptions;

/* Appends the run file that means what the file at `path` means there. Each line of a value says where it comes from; comments at the end
 * say what has no counterpart. out_lost: a line for each key whose loss changes the result, in `arena`. ERR_INVALID when the tool isn't
 * recognised, or the file asks for what isn't here: then *problems (may be NULL) has a line for each. */
NODISCARD Status port_file(Arena *arena, const char *path, const PortOptions *options, StrBuf *out, StrList *out_lost, StrBuf *problems);

/* The same of a text; `path` is the name in messages, and where a registry is looked for. */
NODISCARD Status port_parse(Arena *arena, const char *path, const char *text, size_t len, const PortOptions *options, StrBuf *out,
                            StrList *out_lost, StrBuf *problems);

/* For a run file that is refused: appends the sentence that names `surogate port`, where the file is another tool's. path may be NULL. */
void port_hint(const char *path, StrBuf *out);

/* For a run file that runs: appends one line with what absent keys mean here and in the tool whose keys it has, where they differ; nothing
 * where the keys are ours. */
void port_differences(const char *path, const Config *config, StrBuf *out);
