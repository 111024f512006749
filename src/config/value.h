/* Reads one value of a run file as its option's kind. Private to src/config and src/port. */
#pragma once

#include "base/yaml.h"
#include "config/options.h"

/* Prefix of the source name of values from the command line. */
#define ARGUMENT_SOURCE "argument "

/* Where a reader reports problems and allocates memory. */
typedef struct ConfigReader {
    Arena   *arena;
    StrBuf  *problems;
    size_t   num_problems;
    StrBuf  *notes;
    StrBuf  *ignored; /* other tools' keys that change nothing here, separated by commas */
    StrList *warnings;
} ConfigReader;

/* Adds the line "source:line:column: ...". node NULL: the line has no place. */
void reader_problem(ConfigReader *reader, const YamlNode *node, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* Reads `node` into *out, the option's field (of any kind but DATASETS). False after a problem; *out is unchanged then. label: the key as
 * the user sees it. */
bool option_read(ConfigReader *reader, const OptionInfo *option, const char *label, const YamlNode *node, void *out);

/* Sets the field to its default. */
void option_reset(Arena *arena, const OptionInfo *option, void *out);

/* Reads a boolean in any of its spellings. */
bool bool_read(const char *text, bool *out);

/* Whether the value switches nothing on: false, none, 0, empty. */
bool value_is_inert(const YamlNode *value);
