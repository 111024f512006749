/* From a row of a dataset to what is to be tokenized: a text, or messages for the chat template. */
#pragma once

#include "base/json.h"

#include "data/feeds.h"

typedef enum DatasetType { DATASET_AUTO, DATASET_TEXT, DATASET_INSTRUCTION, DATASET_CONVERSATION, DATASET_TOKENS } DatasetType;
typedef enum TrainOn { TRAIN_ON_ASSISTANT, TRAIN_ON_LAST_TURN, TRAIN_ON_ALL } TrainOn;
typedef enum SystemPromptType { SYSTEM_PROMPT_DEFAULT, SYSTEM_PROMPT_NONE, SYSTEM_PROMPT_FIXED, SYSTEM_PROMPT_FIELD } SystemPromptType;

/* An input of a program's own, and the field of rows that has its numbers. */
typedef struct DatasetInput {
    const char *name, *column;
} DatasetInput;

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
    DatasetInput     inputs[FEED_MOST_OWN];
    int              num_inputs;
} DatasetOptions;

/* Names of fields that say something and that nothing is made of: "id" of a row, "messages[].id" of a message. */
enum { FIELD_SET_MAX = 24, FIELD_NAME_BYTES = 72 };
typedef struct FieldSet {
    int  count;
    bool has_more; /* than FIELD_SET_MAX */
    char names[FIELD_SET_MAX][FIELD_NAME_BYTES];
} FieldSet;

/* `in`: what has the field, "messages[]"; NULL: the row. Long names are cut. */
void field_set_add(FieldSet *set, const char *in, Str name);
void field_set_merge(FieldSet *set, const FieldSet *from);
/* "id, source and more". */
void field_set_put(const FieldSet *set, StrBuf *out);

/* What a dataset was taken for, and how its rows are read. */
typedef struct RowFormat {
    DatasetType type; /* not DATASET_AUTO */
    const char *text_field;
    const char *instruction_field, *input_field, *output_field;
    const char *system_field;
    const char *messages_field, *tools_field;
    const char *ids_field;
    int64_t     input_sizes[FEED_MOST_OWN]; /* numbers a token, of each of DatasetOptions.inputs; 0: the first row doesn't show it */
    const char *completion_field;           /* messages that follow, of which alone answers are trained; NULL: none */
    char        description[256];           /* for people: "conversation (ShareGPT: conversations/from/value)" */
    FieldSet   *unused;                     /* where format_row adds what it doesn't read; NULL: nowhere */
    bool        nulls_are_left_out;         /* in this row, of Parquet: a field of a struct that isn't there was null */
} RowFormat;

/* Settles the format by the options and the fields of the first row. ERR_INVALID lists the fields it found. */
NODISCARD Status format_detect(const DatasetOptions *options, const JsonValue *row, RowFormat *out);

/* Is this a message, {role, content} or ShareGPT's {from, value}, of a role that is known? */
bool format_is_message(const JsonValue *value);

/* One row made ready. */
enum { SAMPLE_MAX_FIELDS = 8 + FEED_MOST_OWN };
typedef struct Sample {
    Str              text;                      /* when messages is NULL */
    size_t           prompt_bytes;              /* of text, not trained */
    const JsonValue *ids, *labels;              /* DATASET_TOKENS: lists of whole numbers; labels NULL: all are trained */
    int64_t          prompt_ids;                /* the first so many of ids, which aren't trained */
    const JsonValue *messages;                  /* array of {role, content, ...} */
    const JsonValue *tools;                     /* array or NULL */
    int8_t          *train;                     /* a flag a message: 1 and 0 as the row says, -1 by the rule */
    const char      *fields[SAMPLE_MAX_FIELDS]; /* of the row, that it was made of */
    int              num_fields;
} Sample;

/* Token ids under that name, and what says which of them are trained: labels, masks, prompt_tokens. Fields may be JSON text. ERR_INVALID
 * names the field; labels may still differ from the ids. */
NODISCARD Status format_ids(Arena *arena, const JsonValue *row, const char *name, Sample *out);

/* What a chat template does with messages that not every template knows. */
typedef struct TemplateTraits TemplateTraits;
struct TemplateTraits {
    const TemplateTraits *with_tools;       /* of another template, for conversations with tools; NULL: these hold */
    bool                  takes_parts;      /* content may be a list of {"type": "text", "text": ...} */
    bool                  prints_developer; /* the role */
    bool                  takes_thoughts;   /* a content's parts may be {"type": "thinking", "thinking": ...} */
    /* What it renders and prints nothing of; false too where that isn't known. */
    bool        hides_tools, hides_names, hides_tool_names, hides_call_ids;
    const char *reasoning_key; /* of reasoning_keys: under which it prints an answer's thinking; NULL: none */
};

/* The names under which datasets and templates have an answer's thinking. */
enum { NUM_REASONING_KEYS = 3 };
extern const char *const reasoning_keys[NUM_REASONING_KEYS];

/* row: an object of fields, or a list of messages. In the arena (parts borrow from row). tmpl NULL: there is no chat template, so that
 * instructions are laid out by prompt_format, or Alpaca's text. ERR_INVALID says which field is wrong, without a place. ERR_NOT_FOUND: it
 * must be there. */
NODISCARD Status format_row(Arena *arena, const DatasetOptions *options, const RowFormat *format, const JsonValue *row,
                            const TemplateTraits *tmpl, Sample *out);
