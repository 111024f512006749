/* From a row of a dataset to what is to be tokenized: a text, or messages for the chat template. */
#pragma once

#include "base/json.h"

typedef enum DatasetType { DATASET_AUTO, DATASET_TEXT, DATASET_INSTRUCTION, DATASET_CONVERSATION } DatasetType;
typedef enum TrainOn { TRAIN_ON_ASSISTANT, TRAIN_ON_LAST_TURN, TRAIN_ON_ALL } TrainOn;
typedef enum SystemPromptType { SYSTEM_PROMPT_DEFAULT, SYSTEM_PROMPT_NONE, SYSTEM_PROMPT_FIXED, SYSTEM_PROMPT_FIELD } SystemPromptType;

/* The keys of a dataset in the run file, under the same names. NULL: not set. Strings are borrowed. */
typedef struct DatasetOptions {
    const char      *path;
    const char      *split;
    DatasetType      type;
    int64_t          samples; /* rows taken; 0: all */
    const char      *text_field, *instruction_field, *input_field, *output_field;
    SystemPromptType system_prompt_type;
    const char      *system_prompt, *system_prompt_field;
    const char      *prompt_format, *prompt_format_no_input;
    const char      *messages_field, *tools_field;
    const char      *role_property, *content_property; /* of message_property_mappings; NULL: found by themselves */
    TrainOn          train_on;
    bool             skip_bad_rows;
} DatasetOptions;

/* What a dataset was taken for. */
typedef struct RowFormat {
    DatasetType type; /* not DATASET_AUTO */
    const char *text_field;
    const char *instruction_field, *input_field, *output_field;
    const char *system_field;
    const char *messages_field, *tools_field;
    char        description[256]; /* for people: "conversation (ShareGPT: conversations/from/value)" */
} RowFormat;

/* Settles the format by the options and the fields of the first row. ERR_INVALID lists the fields it found. */
NODISCARD Status format_detect(const DatasetOptions *options, const JsonValue *row, RowFormat *out);

/* One row made ready. */
typedef struct Sample {
    Str              text;         /* when messages is NULL */
    size_t           prompt_bytes; /* of text, not trained */
    const JsonValue *messages;     /* array of {role, content, ...} */
    const JsonValue *tools;        /* array or NULL */
    int8_t          *train;        /* a flag a message: 1 and 0 as the row says, -1 by the rule */
} Sample;

/* What a chat template does with messages that not every template knows. */
typedef struct TemplateTraits TemplateTraits;
struct TemplateTraits {
    const TemplateTraits *with_tools;       /* of another template, for conversations with tools; NULL: these hold */
    bool                  takes_parts;      /* content may be a list of {"type": "text", "text": ...} */
    bool                  prints_developer; /* the role */
    const char           *reasoning_key;    /* of reasoning_keys: under which it prints an answer's thinking; NULL: none */
};

/* The names under which datasets and templates have an answer's thinking. */
enum { NUM_REASONING_KEYS = 3 };
extern const char *const reasoning_keys[NUM_REASONING_KEYS];

/* In the arena (parts borrow from row). tmpl NULL: there is no chat template, so that instructions are laid out by
 * prompt_format, or Alpaca's text. ERR_INVALID says which field is wrong, without a place. ERR_NOT_FOUND: it must be there. */
NODISCARD Status format_row(Arena *arena, const DatasetOptions *options, const RowFormat *format, const JsonValue *row,
                            const TemplateTraits *tmpl, Sample *out);
