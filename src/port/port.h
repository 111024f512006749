/* Ports run files of Axolotl, LLaMA-Factory and TRL to ours. Every key is looked up in foreign.def; absent keys get that tool's default. */
#pragma once

#include "config/config.h"

typedef struct PortOptions {
    const char *from;        /* tool: axolotl, llamafactory, llamafactory-v1 or trl; NULL: the file's keys tell which */
    const char *dataset_dir; /* folder of LLaMA-Factory's dataset_info.json; NULL: the file's key dataset_dir tells */
} PortOptions;

/* Appends a run file that asks this program for what the file at `path` asks its tool for. A comment on each line says where the value
 * comes from; comments at the end list keys without a counterpart. out_lost: one line, in `arena`, for each dropped key that changes the
 * result. ERR_INVALID when the tool isn't recognized or the file needs something that isn't here; *problems (may be NULL) then has a line
 * for each. */
NODISCARD Status port_file(Arena *arena, const char *path, const PortOptions *options, StrBuf *out, StrList *out_lost, StrBuf *problems);

/* As port_file, for a text. `path` is its name in messages; a registry is looked for in its folder. */
NODISCARD Status port_parse(Arena *arena, const char *path, const char *text, size_t len, const PortOptions *options, StrBuf *out,
                            StrList *out_lost, StrBuf *problems);

/* For a run file that was refused: appends a sentence that names `surogate port` if the file is another tool's. path may be NULL. */
void port_hint(const char *path, StrBuf *out);

/* For a run file that runs but has another tool's keys: appends one line with the defaults that differ between that tool and ours. Appends
 * nothing where all keys are ours. */
void port_differences(const char *path, const Config *config, StrBuf *out);
