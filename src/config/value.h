/* One value of a run file, read as its option wants it. Private to src/config and src/port. */
#pragma once

#include "base/yaml.h"
#include "config/options.h"

/* What the source of a value from the command line starts with. */
#define ARGUMENT_SOURCE "argument "

/* Where problems go, and memory comes from. */
typedef struct ConfigReader {
    Arena   *arena;
    StrBuf  *problems;
    size_t   num_problems;
    StrBuf  *notes;
    StrBuf  *ignored; /* names of other tools' keys that change nothing here, with commas */
    StrList *warnings;
} ConfigReader;

/* Adds the line "source:line:column: ...". node may be NULL: no place. */
void reader_problem(ConfigReader *reader, const YamlNode *node, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* Reads `node` into *out, the option's field (of any kind but DATASETS); false after a problem, *out untouched.
 * label: the key as the user sees it. */
bool option_read(ConfigReader *reader, const OptionInfo *option, const char *label, const YamlNode *node, void *out);

/* Gives the field its default. */
void option_reset(Arena *arena, const OptionInfo *option, void *out);

/* A boolean in any of its spellings. */
bool bool_read(const char *text, bool *out);
