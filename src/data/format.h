/* Turns a row of a dataset into a text, messages for the chat template, or token ids, which are then tokenized. */
#pragma once

#include "base/json.h"

#include "data/feeds.h"

typedef enum DatasetType { DATASET_AUTO, DATASET_TEXT, DATASET_INSTRUCTION, DATASET_CONVERSATION, DATASET_TOKENS } DatasetType;
typedef enum TrainOn { TRAIN_ON_ASSISTANT, TRAIN_ON_LAST_TURN, TRAIN_ON_ALL } TrainOn;
typedef enum SystemPromptType { SYSTEM_PROMPT_DEFAULT, SYSTEM_PROMPT_NONE, SYSTEM_PROMPT_FIXED, SYSTEM_PROMPT_FIELD } SystemPromptType;

/* An input that a program defines itself (OwnInput), and the field of rows that holds its numbers. */
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
    const char      *role_property, *content_property; /* keys of message_property_mappings; NULL: detected */
    TrainOn          train_on;
    bool             skip_bad_rows;
    DatasetInput     inputs[FEED_MOST_OWN];
    int              num_inputs;
} DatasetOptions;

/* Names of fields that aren't empty but aren't used: "id" of a row, "messages[].id" of a message. */
enum { FIELD_SET_MAX = 24, FIELD_NAME_BYTES = 72 };
typedef struct FieldSet {
    int  count;
    bool has_more; /* more names than FIELD_SET_MAX were added */
    char names[FIELD_SET_MAX][FIELD_NAME_BYTES];
} FieldSet;

/* `in`: the part of the row that has the field, such as "messages[]"; NULL: the row. Long names are cut. */
void field_set_add(FieldSet *set, const char *in, Str name);
void field_set_merge(FieldSet *set, const FieldSet *from);
/* Appends the names, as "id, source and more". */
void field_set_put(const FieldSet *set, StrBuf *out);

/* The detected layout of a dataset, by which its rows are read. */
typedef struct RowFormat {
    DatasetType type; /* the detected type, never DATASET_AUTO */
    const char *text_field;
    const char *instruction_field, *input_field, *output_field;
    const char *system_field;
    const char *messages_field, *tools_field;
    const char *ids_field;
    int64_t     input_sizes[FEED_MOST_OWN]; /* numbers per token of each of DatasetOptions.inputs; 0: not known yet */
    const char *completion_field;           /* field with the messages that answer the prompt, which messages_field holds; NULL: none */
    char        description[256];           /* for people: "conversation (ShareGPT: conversations/from/value)" */
    FieldSet   *unused;                     /* set that gets the names of fields that format_row doesn't use; NULL: they aren't noted */
    bool        nulls_are_left_out;         /* rows are of a Parquet file: fields of structs that were null are absent */
} RowFormat;

/* Detects the layout from the options and the fields of the first row. ERR_INVALID lists the fields it found. */
NODISCARD Status format_detect(const DatasetOptions *options, const JsonValue *row, RowFormat *out);

/* Is this a message, {role, content} or ShareGPT's {from, value}, with a known role? */
bool format_is_message(const JsonValue *value);

/* One row, ready to be tokenized. */
enum { SAMPLE_MAX_FIELDS = 8 + FEED_MOST_OWN };
typedef struct Sample {
    Str              text;                      /* used when messages and ids are NULL */
    size_t           prompt_bytes;              /* how many of text's first bytes aren't trained */
    const JsonValue *ids, *labels;              /* DATASET_TOKENS: lists of whole numbers; labels NULL: all are trained */
    int64_t          prompt_ids;                /* how many of the first ids aren't trained */
    const JsonValue *messages;                  /* array of {role, content, ...} */
    const JsonValue *tools;                     /* array or NULL */
    int8_t          *train;                     /* per message: 1 or 0 as the row says; -1: DatasetOptions.train_on decides */
    const char      *fields[SAMPLE_MAX_FIELDS]; /* names of the row's fields that the sample was made of */
    int              num_fields;
} Sample;

/* Reads the token ids in field `name`, and which of them are trained, from the fields of labels, masks and prompt_tokens. Fields may be
 * JSON text. ERR_INVALID names the field. It isn't checked that each label equals its id. */
NODISCARD Status format_ids(Arena *arena, const JsonValue *row, const char *name, Sample *out);

/* Which features of messages a chat template supports, where templates differ. */
typedef struct TemplateTraits TemplateTraits;
struct TemplateTraits {
    const TemplateTraits *with_tools;       /* traits of the template for conversations with tools; NULL: the same template */
    bool                  takes_parts;      /* content may be a list of {"type": "text", "text": ...} */
    bool                  prints_developer; /* the template prints messages of the role "developer" */
    bool                  text_arguments;   /* arguments of tool calls must be JSON text: the template refuses objects */
    bool                  takes_thoughts;   /* a content's parts may be {"type": "thinking", "thinking": ...} */
    /* True: the template accepts these parts of a message but prints nothing of them. False if unknown. */
    bool        hides_tools, hides_names, hides_tool_names, hides_call_ids;
    const char *reasoning_key; /* the key of reasoning_keys whose text the template prints as an answer's thinking; NULL: none */
};

/* The keys of a message under which datasets and templates store an answer's thinking. */
enum { NUM_REASONING_KEYS = 3 };
extern const char *const reasoning_keys[NUM_REASONING_KEYS];

/* row: an object of fields, or a list of messages. The sample is in the arena; parts of it point into row. tmpl NULL: there is no chat
 * template, and instructions are laid out by prompt_format, or as Alpaca's text. ERR_INVALID says which field is wrong, but not in which
 * file or line. ERR_NOT_FOUND: conversations need a template. */
NODISCARD Status format_row(Arena *arena, const DatasetOptions *options, const RowFormat *format, const JsonValue *row,
                            const TemplateTraits *tmpl, Sample *out);
