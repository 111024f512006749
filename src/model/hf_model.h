/* HfModel: a Hugging Face model folder, opened. config.json is read at once; weights are mapped when asked for. */
#pragma once

#include "files/safetensors.h"
#include "ir/module.h"
#include "model/model_ir.h"
#include "model/quantised.h"

/* A tensor that stands for two, and the name that the second would have. */
typedef struct HfTie {
    const char *tensor, *untied;
} HfTie;

typedef struct HfModel {
    Arena      *arena;
    const char *dir;
    const char *gguf;        /* the GGUF file that the folder was made of; NULL: none */
    const char *config_name; /* DIR/config.json, for errors */
    Str         config_text; /* as in the file, but for what own_head says, and without quantization_config */
    JsonValue   config;
    IrModule   *module; /* the IR of its architecture: see model_ir.h */
    IrDims      dims;
    int64_t     vocab_size;
    int64_t     max_positions;                        /* longest sequence it was made for */
    const char *vocab_key, *positions_key, *tied_key; /* of config.json, that say so; NULL: none does */
    DType       dtype;                                /* what config.json says; F32 when it says nothing, BF16 for float16 */
    bool        is_half;                              /* it says float16 */
    bool        tied_head;
    HfTie      *ties; /* of a tied one, once its weights are open */
    int         num_ties;
    const char *own_head;     /* the file ties the head, but the folder has this tensor: `config` says that it isn't tied; NULL: none */
    JsonValue   quantization; /* quantization_config; null: there is none */
    StFile     *weights;      /* NULL until hf_model_open_weights */

    const char     *ns; /* of a second model: the name in front of what it gives; NULL: it is the model itself */
    struct HfModel *namespaces[IR_MOST_NAMESPACES];
    int             num_namespaces;

    QuantisedFormat     format;        /* of the matrices in `weights` */
    const WeightFormat *weight_format; /* what a plan can keep them in as they are; NULL: they are read as numbers */
} HfModel;

/* The folder that a path of a run file means: itself, the one of a repository on the hub, the one that a GGUF file was unpacked into
 * (*out_gguf: that file; else NULL). */
NODISCARD Status hf_local_dir(Arena *arena, const char *path, const char **out_dir, const char **out_gguf);

/* Reads DIR/config.json and checks it against the IR of its architecture. ERR_NOT_FOUND, ERR_UNSUPPORTED (an architecture or
 * setting we don't have) and ERR_INVALID say where and what to do. Lives in `arena`; hf_model_close drops the maps. */
NODISCARD Status hf_model_open(Arena *arena, const char *dir, HfModel **out_model);
/* The same with the IR of that file; none: the one that is found. */
NODISCARD Status hf_model_open_as(Arena *arena, const char *dir, NamedIr ir, HfModel **out_model);
/* Has programs compute an objective of the model (NULL: what its IR says), which may read outputs of other models, each under its `ns`;
 * they are closed with it. */
NODISCARD Status hf_model_link(HfModel *model, const IrModule *objective, HfModel *const *namespaces, int num_namespaces);
/* The model that a parameter is of: one of `namespaces`, or itself. */
const HfModel *hf_model_of(const HfModel *model, const Param *param);
/* Maps the weights. They may untie the head (own_head), so this comes before the model is bound. Idempotent. */
NODISCARD Status hf_model_open_weights(HfModel *model);
/* Whether its matrices are stored in this format, or one that is decoded by the same op: NF4, its scales quantised or not. */
bool             hf_model_has_format(const HfModel *model, const WeightFormat *format);
NODISCARD Status hf_model_has_weights(const HfModel *model, bool *out); /* there are safetensors in the folder */
NODISCARD Status hf_model_require_weights(const HfModel *model);        /* else an error that says what is there instead */
void             hf_model_close(HfModel *model);
/* The same of a model that stands at this address, for SCOPED. */
static inline void hf_model_close_at(HfModel **model)
{
    hf_model_close(*model);
}

/* Says, as notes of log_note, what of the folder isn't taken as it is; dtype, format: how the weights, where they are open, are kept, and
 * those that are quantised (NULL: like the others). key: in training the key of the run file that sets dtype; NULL: not in training. */
void hf_model_tell(const HfModel *model, DType dtype, const WeightFormat *format, const char *key, StrBuf *notes);

/* An instantiation of the model just to see its parameters: batch 1, one token. */
NODISCARD Status hf_model_bind(Arena *arena, const HfModel *model, DType dtype, Graph **out_graph);

/* Another config.json in place of the folder's, which is copied; what follows from it changes, weights that are open don't. */
NODISCARD Status hf_model_set_config(HfModel *model, const JsonValue *config);

/* Has `config`, that of the model or a copy with room for a member more, say that the head isn't tied. */
void hf_model_untie(const HfModel *model, JsonValue *config);

/* config.json for weights stored as `dtype`: the file's own bytes where that is already true, else only that key changes. */
void hf_model_config_text(Arena *arena, const HfModel *model, DType dtype, StrBuf *out);

/* Writes config.json for weights of `dtype` into `folder`, and the IR unless it is a shipped one. */
NODISCARD Status hf_model_write_config(const HfModel *model, DType dtype, const char *folder);

/* Whether bos_token_id, eos_token_id and pad_token_id of a config.json or generation_config.json are ids. */
NODISCARD Status hf_check_token_ids(const JsonValue *config, const char *config_name);

/* The files beside weights and config.json: tokenizer, chat templates, generation. Byte for byte; those that aren't there are left
 * out. `files` live in the arena: a run that read them at its start can save without their folder. */
#define HF_TEMPLATE_FOLDER "additional_chat_templates"
enum { HF_NUM_SIDE_FILES = 11 };
typedef struct HfSideFiles {
    Str          texts[HF_NUM_SIDE_FILES]; /* data NULL: not there */
    const char **template_names;           /* of HF_TEMPLATE_FOLDER, sorted */
    Str         *templates;
    size_t       num_templates;
    int64_t      bytes; /* of all */
} HfSideFiles;
bool             hf_is_side_file(const char *name);
NODISCARD Status hf_read_side_files(Arena *arena, const char *dir, HfSideFiles *out);
NODISCARD Status hf_write_side_files(const HfSideFiles *files, const char *folder);
NODISCARD Status hf_copy_side_files(const char *from, const char *folder); /* which may be the same */
