/* HfModel: an opened Hugging Face model folder. config.json is read at once; weights are mapped when asked for. */
#pragma once

#include "files/safetensors.h"
#include "ir/module.h"
#include "model/model_ir.h"
#include "model/quantised.h"

/* A tensor that is both embedding and tied head. untied: the name that an untied head would have. */
typedef struct HfTie {
    const char *tensor, *untied;
} HfTie;

typedef struct HfModel {
    Arena      *arena;
    const char *dir;
    const char *gguf;        /* the GGUF file that the folder was unpacked from; NULL: none */
    const char *config_name; /* DIR/config.json, for messages */
    Str         config_text; /* text of config.json without quantization_config; also changed for own_head or a second rope key */
    JsonValue   config;
    IrModule   *module; /* the IR of its architecture: see model_ir.h */
    IrDims      dims;
    int64_t     vocab_size;
    int64_t     max_positions;                        /* longest sequence that the model was made for */
    const char *vocab_key, *positions_key, *tied_key; /* keys of config.json for vocab_size, max_positions and tied_head; NULL: none */
    DType       dtype;                                /* dtype of config.json; if it names none: F32; any but float32 and bfloat16: BF16 */
    bool        is_half;                              /* config.json says float16 */
    bool        tied_head;
    HfTie      *ties; /* tensors that a tied head shares; known once the weights are open */
    int         num_ties;
    const char *own_head;     /* config.json ties the head, but the folder has this tensor for it, so `config` unties it; NULL: none */
    JsonValue   quantization; /* quantization_config; JSON null: none */
    StFile     *weights;      /* NULL until hf_model_open_weights */

    const char     *ns; /* prefix of the output names of a second model; NULL: this is the main model */
    struct HfModel *namespaces[IR_MOST_NAMESPACES];
    int             num_namespaces;

    QuantisedFormat     format;        /* format of the quantised matrices in `weights` */
    const WeightFormat *weight_format; /* format in which a plan can keep these matrices unchanged; NULL: none, their values are read */
} HfModel;

/* *out_dir: the folder that a run file's path stands for. It is the path itself, a repository's snapshot, or the folder that a GGUF file is
 * unpacked into. *out_gguf: that GGUF file; NULL: none. */
NODISCARD Status hf_local_dir(Arena *arena, const char *path, const char **out_dir, const char **out_gguf);

/* Reads DIR/config.json and checks it against the IR of its architecture. ERR_NOT_FOUND, ERR_UNSUPPORTED (an architecture or setting that
 * isn't supported) and ERR_INVALID say where, and what to do. The model lives in `arena`; hf_model_close unmaps its weights. */
NODISCARD Status hf_model_open(Arena *arena, const char *dir, HfModel **out_model);
/* Like hf_model_open, with the IR of the file that `ir` names; if it names none, with the IR that model_ir_find finds. */
NODISCARD Status hf_model_open_as(Arena *arena, const char *dir, NamedIr ir, HfModel **out_model);
/* Sets the objective that programs compute (NULL: the one of the model's IR). It may read outputs of other models, each under its `ns`.
 * hf_model_close closes these models too. */
NODISCARD Status hf_model_link(HfModel *model, const IrModule *objective, HfModel *const *namespaces, int num_namespaces);
/* The model that the parameter belongs to: one of `namespaces`, or `model` itself. */
const HfModel *hf_model_of(const HfModel *model, const Param *param);
/* Maps the weights. That may untie the head (own_head), so call it before the model is bound. More calls do nothing. */
NODISCARD Status hf_model_open_weights(HfModel *model);
/* Whether the model's matrices are stored in `format`, or in a format that the same op decodes: one op decodes NF4 with plain scales and
 * NF4 with quantised scales. */
bool             hf_model_has_format(const HfModel *model, const WeightFormat *format);
NODISCARD Status hf_model_has_weights(const HfModel *model, bool *out); /* *out: whether the folder has safetensors */
NODISCARD Status hf_model_require_weights(const HfModel *model); /* fails without safetensors; the error says what is there instead */
void             hf_model_close(HfModel *model);
/* Closes *model, for SCOPED. */
static inline void hf_model_close_at(HfModel **model)
{
    hf_model_close(*model);
}

/* Notes (log_note) which parts of the folder aren't used as stored. dtype: dtype in which weights are kept; format: format in which
 * quantised weights are kept (NULL: `dtype`). Both matter only if the weights are open. key: in training, the run file's key that sets
 * dtype; NULL: not in training. */
void hf_model_tell(const HfModel *model, DType dtype, const WeightFormat *format, const char *key, StrBuf *notes);

/* Binds the model for batch 1 and one token: a graph that serves only to list its parameters. */
NODISCARD Status hf_model_bind(Arena *arena, const HfModel *model, DType dtype, Graph **out_graph);

/* Replaces the model's config by a copy of `config`, and all fields that are read from it. Open weights stay open. */
NODISCARD Status hf_model_set_config(HfModel *model, const JsonValue *config);

/* Sets `config` to say that the head isn't tied. `config` is the model's, or a copy with room for one more member. */
void hf_model_untie(const HfModel *model, JsonValue *config);

/* Appends config.json for weights stored as `dtype`: config_text unchanged if it names `dtype`, else the config with only the dtype's key
 * set. */
void hf_model_config_text(Arena *arena, const HfModel *model, DType dtype, StrBuf *out);

/* Writes config.json for weights of `dtype` into `folder`, and the IR if it isn't a shipped one. */
NODISCARD Status hf_model_write_config(const HfModel *model, DType dtype, const char *folder);

/* Checks that bos_token_id, eos_token_id and pad_token_id of a config.json or generation_config.json are ids. */
NODISCARD Status hf_check_token_ids(const JsonValue *config, const char *config_name);

/* The files besides weights and config.json: tokenizer, chat templates, generation settings. They are copied byte for byte; missing ones
 * are left out. Their texts are in the arena: a run that read them at its start can save even if their folder is gone. */
#define HF_TEMPLATE_FOLDER "additional_chat_templates"
enum { HF_NUM_SIDE_FILES = 11 };
typedef struct HfSideFiles {
    Str          texts[HF_NUM_SIDE_FILES]; /* data NULL: the file doesn't exist */
    const char **template_names;           /* file names in HF_TEMPLATE_FOLDER, sorted */
    Str         *templates;
    size_t       num_templates;
    int64_t      bytes; /* total size of texts and templates */
} HfSideFiles;
bool             hf_is_side_file(const char *name);
NODISCARD Status hf_read_side_files(Arena *arena, const char *dir, HfSideFiles *out);
NODISCARD Status hf_write_side_files(const HfSideFiles *files, const char *folder);
NODISCARD Status hf_copy_side_files(const char *from, const char *folder); /* `from` and `folder` may be the same folder */
