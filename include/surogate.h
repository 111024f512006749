/* Surogate: the public interface, plain C. Handles are opaque; a handle belongs to one thread at a time, different handles may be
 * used from different threads. Text is UTF-8. Nothing here prints, except that training shows its progress on stderr.
 *
 * Every call that can fail returns sg_status; sg_message() then says what, where, what was expected and what to do. */
#ifndef SUROGATE_H
#define SUROGATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SG_API __attribute__((visibility("default")))
#else
#define SG_API
#endif

/* What went wrong; the command line program's exit code for each is sg_exit_code(). */
typedef enum sg_status {
    SG_OK,
    SG_INTERNAL,
    SG_INVALID, /* a run file, model folder, data set or argument */
    SG_UNSUPPORTED,
    SG_NOT_FOUND,
    SG_IO,
    SG_DEVICE,
    SG_NO_FIT,   /* memory or disk */
    SG_DIVERGED, /* loss or norm not finite */
    SG_CHECKPOINT,
    SG_SAVE,
    SG_INTERRUPTED, /* sg_interrupt, or of the program a signal; a resumable checkpoint was saved */
    SG_RANK,        /* another rank of the run failed */
} sg_status;

SG_API const char *sg_version(void); /* "0.1.0" */
SG_API const char *sg_message(void); /* of this thread's last failure; valid until the next */
SG_API int         sg_exit_code(sg_status status);
SG_API void        sg_free(void *memory); /* what calls below hand out */

/* From any thread or signal handler. Every sg_run_train of this process ends with SG_INTERRUPTED after its step and a resumable
 * checkpoint, every sg_dataset_open that tokenizes after its piece of work, every sg_model_generate_rows after its step. It asks what
 * runs: what begins later isn't stopped, and takes nothing of it back. */
SG_API void sg_interrupt(void);

/* ---- training runs ---- */

typedef struct sg_run sg_run;

/* What the command line takes: a run file's path, "key=value" overrides. All problems are in the message at once. */
SG_API sg_status sg_run_open(const char *const *args, size_t num_args, sg_run **out_run);
SG_API void      sg_run_close(sg_run *run); /* NULL is fine */

/* Memory, work and time of a step as JSON (docs: surogate plan --json), for a named GPU or (NULL) this machine's device. Loads nothing.
 * *out_json is the caller's, for sg_free. */
SG_API sg_status sg_run_plan(sg_run *run, const char *gpu, char **out_json);

typedef struct sg_outcome {
    bool    already_finished; /* the output folder held this run, finished; nothing was done */
    int64_t steps;
    double  loss, eval_loss; /* last ones; NaN: none */
} sg_outcome;

/* Trains as the run file says, samples and all; the model ends up in its output_dir. Resumes by itself what an earlier call left
 * unfinished. out_outcome NULL: it isn't asked for. */
SG_API sg_status sg_run_train(sg_run *run, sg_outcome *out_outcome);

/* ---- training, step by step ---- */

typedef struct sg_trainer sg_trainer;

/* A run whose steps the caller drives: settings as sg_run_open takes them (model, from_scratch, lora, recipe, optimizer, device, ...),
 * without what they say of data, logging, saving, resuming and evaluating. The same batches give the same bits as sg_run_train. Several
 * ranks (gpus) are threads of this process, and a micro-batch has the rows of all of them, rank after rank.
 * Loads the model and allocates all memory that it will take; prints nothing. generate_samples above 0: with what sg_trainer_generate
 * needs; whole_logits: true: with what sg_trainer_logits needs. */
SG_API sg_status sg_trainer_open(const char *const *args, size_t num_args, sg_trainer **out_trainer);
SG_API void      sg_trainer_close(sg_trainer *trainer); /* NULL is fine */

typedef struct sg_trainer_info {
    int64_t rows, cols;    /* of a micro-batch, at most: per_device_train_batch_size of each rank, sequence_len */
    int64_t micro_batches; /* of a step, at most: gradient_accumulation_steps */
    int64_t vocab_size;
    int64_t steps; /* updates queued so far, those of the checkpoint it goes on from included */
    int64_t parameters, trained_parameters;
    int64_t device_bytes; /* of each rank */
    int64_t seed;
} sg_trainer_info;
SG_API sg_status sg_trainer_get_info(sg_trainer *trainer, sg_trainer_info *out_info);

/* What sg_run_plan tells, of this trainer. *out_json is the caller's, for sg_free. */
SG_API sg_status sg_trainer_plan(sg_trainer *trainer, char **out_json);

/* An input that a model's or objective's IR has of its own, by its name: whole numbers in ids, or floats in values, as the IR says.
 * (rows, cols), or (rows, cols, size) where a token has several numbers. */
typedef struct sg_input {
    const char    *name;
    const int32_t *ids;
    const float   *values;
} sg_input;

/* All arrays are (rows, cols), row by row. Fewer rows or columns than the trainer's are padded. */
typedef struct sg_batch {
    int64_t        rows, cols;
    const int32_t *ids;       /* token ids */
    const int32_t *targets;   /* the id that comes after each; -100: not trained */
    const int32_t *segments;  /* >= 0: which document the token is of; equal neighbours see one another; -1: padding. NULL: a row is a
                               * document.  Several in a row need sample_packing: true. Draws of dropout follow from the number; a document
                               * whose number  another one of the step has draws its own */
    const int32_t *positions; /* of the token in its document, from 0; NULL: counted */

    const sg_input *inputs; /* each that the model reads; of a data set those that its key `inputs` gives */
    size_t          num_inputs;
} sg_batch;

/* How many numbers a token has of the input of that name; 0: the model has no such input. */
SG_API int64_t sg_trainer_input_size(sg_trainer *trainer, const char *name);

/* Takes a copy of a micro-batch of the next update. */
SG_API sg_status sg_trainer_step(sg_trainer *trainer, const sg_batch *batch);
/* The same of what sg_dataset_next gave: a document that comes twice in a step draws the same both times, as the command has it. */
SG_API sg_status sg_trainer_step_data(sg_trainer *trainer, const sg_batch *batch);
/* Forgets what was taken of an unfinished step, unless its gradients are made. */
SG_API sg_status sg_trainer_drop(sg_trainer *trainer);
/* Queues the gradients of what was taken, of the mean loss of all trained targets; wanted only to look at them before the update. */
SG_API sg_status sg_trainer_backward(sg_trainer *trainer);
/* Queues gradients and update, and returns; lr NaN: the run file's, a function of max_steps. Two at most wait for sg_trainer_result. */
SG_API sg_status sg_trainer_update(sg_trainer *trainer, double lr);

typedef struct sg_step {
    int64_t step;       /* from 1 */
    double  loss, norm; /* mean of the trained targets, nats; of all gradients, before clipping */
    double  lr, seconds;
    int64_t tokens, trained; /* without padding; targets */
    bool    is_applied;      /* false: loss or norm wasn't finite, and weights are as before */
    double  accuracy;        /* share of the trained targets that were the likeliest token; NaN: the model's loss has no such */
} sg_step;
/* Awaits the oldest update whose result wasn't asked for. Asking for it after the next update is queued keeps the device busy. */
SG_API sg_status sg_trainer_result(sg_trainer *trainer, sg_step *out_step);
typedef struct sg_scalar {
    const char *name; /* valid until sg_trainer_close */
    double      value;
} sg_scalar;
/* The named scalars of the step that sg_trainer_result gave last: those of log_scalars, and accuracy. Before that there are none. */
SG_API size_t    sg_trainer_num_scalars(sg_trainer *trainer);
SG_API sg_status sg_trainer_scalar(sg_trainer *trainer, size_t index, sg_scalar *out_scalar);

/* losses (rows, cols): -ln p of each target, 0 where it is -100; *out_loss: their mean over *out_trained targets, NaN if there is none.
 * Each may be NULL. Any number of rows; no micro-batch that was taken is touched. */
SG_API sg_status sg_trainer_losses(sg_trainer *trainer, const sg_batch *batch, float *losses, double *out_loss, int64_t *out_trained);

/* logits (rows, cols, vocab_size), `numel` floats: those that the loss takes the softmax of, capped and scaled where the model's are; 0 in
 * padding. As floats of a bf16 model they have bf16's digits. Needs whole_logits: true. Targets aren't read and may be NULL; of inputs
 * those that the logits follow from are enough. Any number of rows; no micro-batch that was taken is touched. */
SG_API sg_status sg_trainer_logits(sg_trainer *trainer, const sg_batch *batch, float *logits, size_t numel);

typedef struct sg_sampling {
    double   temperature; /* 0: the likeliest token */
    int64_t  top_k;       /* 0: all */
    double   top_p;       /* 0 or 1: all */
    uint64_t seed;
} sg_sampling;

/* As sg_model_generate, with the weights as they are. */
SG_API sg_status sg_trainer_generate(sg_trainer *trainer, const int32_t *ids, size_t num, int64_t max_tokens, const sg_sampling *sampling,
                                     int32_t **out_ids, size_t *out_num);

/* What is trained, under the names that Hugging Face's (or, of an adapter, PEFT's) files have. */
typedef struct sg_tensor {
    const char *name; /* valid until sg_trainer_load or sg_trainer_close */
    int         ndim;
    int64_t     dim[4], numel;
} sg_tensor;
SG_API size_t    sg_trainer_num_tensors(sg_trainer *trainer); /* 0: a failure */
SG_API sg_status sg_trainer_tensor(sg_trainer *trainer, size_t index, sg_tensor *out_tensor);
/* Its elements, or those of its gradient in the last step (as backward made it, not clipped), as floats: `numel` of them. */
SG_API sg_status sg_trainer_weight(sg_trainer *trainer, size_t index, float *values, size_t numel);
SG_API sg_status sg_trainer_gradient(sg_trainer *trainer, size_t index, float *values, size_t numel);

/* DIR/checkpoint-STEP, as runs write them: whole or not at all, save_total_limit of them kept. dir NULL: output_dir. */
SG_API sg_status sg_trainer_save(sg_trainer *trainer, const char *dir);
/* Weights, optimizer and step count of a checkpoint's folder in place of the present ones. */
SG_API sg_status sg_trainer_load(sg_trainer *trainer, const char *checkpoint);
/* A folder as Hugging Face reads it; with lora, its adapters merged in. */
SG_API sg_status sg_trainer_export_model(sg_trainer *trainer, const char *dir);
SG_API sg_status sg_trainer_export_adapter(sg_trainer *trainer, const char *dir); /* as PEFT reads it */

/* ---- data sets ---- */

typedef struct sg_dataset sg_dataset;
typedef enum sg_part { SG_TRAIN, SG_VALIDATION } sg_part;

/* The micro-batches that a run of these settings trains (or is evaluated) on, in its order. Tokenizes what isn't yet, into
 * dataset_cache_dir. */
SG_API sg_status sg_dataset_open(const char *const *args, size_t num_args, sg_part part, sg_dataset **out_dataset);
SG_API void      sg_dataset_close(sg_dataset *dataset); /* NULL is fine */

typedef struct sg_dataset_info {
    int64_t steps, micro_batches; /* as max_steps or num_epochs say; of each */
    int64_t documents, rows;      /* one epoch */
    int64_t tokens, trained;      /* in these rows; of them, targets */
    int64_t batch_rows, cols;     /* of a micro-batch */
    int64_t seed;
} sg_dataset_info;
SG_API sg_status sg_dataset_get_info(sg_dataset *dataset, sg_dataset_info *out_info);
/* The next micro-batch is the first of `step`, counted from 0. */
SG_API sg_status sg_dataset_seek(sg_dataset *dataset, int64_t step);
/* As sg_trainer_input_size, of what the data gives. */
SG_API int64_t sg_dataset_input_size(sg_dataset *dataset, const char *name);
/* Arrays are the data set's, valid until its next call. rows 0: the end. */
SG_API sg_status sg_dataset_next(sg_dataset *dataset, sg_batch *out_batch);

/* ---- tokenizers and chat templates ---- */

typedef struct sg_tokenizer sg_tokenizer;

/* Of a model's folder, or of a repository of the hub. */
SG_API sg_status sg_tokenizer_open(const char *dir, sg_tokenizer **out_tokenizer);
SG_API void      sg_tokenizer_close(sg_tokenizer *tokenizer); /* NULL is fine */

typedef struct sg_tokenizer_info {
    int32_t vocab_size;
    int32_t bos, eos, pad; /* ids; -1: none */
} sg_tokenizer_info;
SG_API sg_status sg_tokenizer_get_info(sg_tokenizer *tokenizer, sg_tokenizer_info *out_info);
/* add_special: with what the tokenizer puts around a text (BOS, EOS). *out_ids is the caller's, for sg_free. */
SG_API sg_status sg_tokenizer_encode(sg_tokenizer *tokenizer, const char *text, size_t len, bool add_special, int32_t **out_ids,
                                     size_t *out_num);
/* UTF-8, NUL-terminated; the caller's, for sg_free. out_len: its bytes, or NULL. */
SG_API sg_status sg_tokenizer_decode(sg_tokenizer *tokenizer, const int32_t *ids, size_t num, bool skip_special, char **out_text,
                                     size_t *out_len);

typedef struct sg_chat_template sg_chat_template;

/* dir: the folder with the template and its special tokens. source: Jinja in its place, or NULL; then dir may be NULL. */
SG_API sg_status sg_chat_template_open(const char *dir, const char *source, sg_chat_template **out_template);
SG_API void      sg_chat_template_close(sg_chat_template *tmpl); /* NULL is fine */

/* conversation: JSON, a list of messages or {"messages": [...], "tools": [...]}. *out_text is the caller's, for sg_free. */
SG_API sg_status sg_chat_template_render(sg_chat_template *tmpl, const char *conversation, bool add_generation_prompt, char **out_text);
/* The same with the text's bytes in *out_len, or NULL: a text may hold NULs, as a conversation may (\u0000). */
SG_API sg_status sg_chat_template_render_text(sg_chat_template *tmpl, const char *conversation, bool add_generation_prompt, char **out_text,
                                              size_t *out_len);

typedef enum sg_train_on { SG_TRAIN_ASSISTANT, SG_TRAIN_LAST_TURN, SG_TRAIN_ALL } sg_train_on;
/* As training lays a conversation out: ids, and for each whether it is trained (1) or not (0); both the caller's, for sg_free. */
SG_API sg_status sg_chat_template_encode(sg_chat_template *tmpl, sg_tokenizer *tokenizer, const char *conversation, sg_train_on train_on,
                                         int32_t **out_ids, uint8_t **out_mask, size_t *out_num);

/* ---- models ---- */

typedef struct sg_model sg_model;

/* A model folder, or an adapter folder that names its base. adapter: a PEFT folder over it, or NULL. device: "auto" (or NULL), "cpu" or
 * "cuda". threads of the CPU; 0: all cores. */
SG_API sg_status sg_model_open(const char *dir, const char *adapter, const char *device, int threads, sg_model **out_model);
SG_API void      sg_model_close(sg_model *model); /* NULL is fine */

/* How sg_model_open_as opens a model. Of fields that are 0 or NULL the comment says what they stand for. */
typedef struct sg_model_options {
    size_t      size;         /* sizeof(sg_model_options), so that later versions may add fields */
    const char *adapter;      /* a PEFT folder over the model; NULL: none, or the one that is opened */
    const char *device;       /* "auto", "cpu" or "cuda"; NULL: "auto" */
    int         threads;      /* of the CPU; 0: all cores */
    const char *dtype;        /* of weights and arithmetic: "fp32", "bf16" or "fp16"; NULL: the folder's */
    const char *quantization; /* the matrices of blocks are kept in few bits, made as they load: "int8", "fp8", "nf4", "nvfp4"; "none": as
                               * numbers; NULL: as the folders have them */
    const char *kv;           /* keys and values of texts that are generated: "fp8" (e4m3) or "auto" (the model's dtype); NULL: "auto" */
    bool        split_k;      /* long sums of decoding are made in parts, on GPUs of compute capability 9.0: sooner, with other bits */
} sg_model_options;

/* As sg_model_open, which is the same without dtype and quantization. */
SG_API sg_status sg_model_open_as(const char *dir, const sg_model_options *options, sg_model **out_model);

/* Ids of a text as the model is fed it. *out_ids (num) is the caller's, for sg_free. */
SG_API sg_status sg_model_encode(sg_model *model, const char *text, size_t len, int32_t **out_ids, size_t *out_num);

/* The text of ids, NUL-terminated, special tokens left out; the caller's, for sg_free. */
SG_API sg_status sg_model_decode(sg_model *model, const int32_t *ids, size_t num, char **out_text);
/* The same with the text's bytes in *out_len, or NULL: ids may stand for NULs. */
SG_API sg_status sg_model_decode_text(sg_model *model, const int32_t *ids, size_t num, char **out_text, size_t *out_len);

/* losses[i] = -ln p(ids[i+1] | before it), num - 1 of them. num >= 2. */
SG_API sg_status sg_model_losses(sg_model *model, const int32_t *ids, size_t num, float *losses);

/* ln p of every token of many rows. rows: JSON Lines of {"text"}, {"prompt", "completion"} or {"ids"}, the last with "labels", a "mask"
 * or "prompt_tokens" as data sets of ids have them. A line of JSON a row, in their order: "ids"; "logprobs" of these, null for the first;
 * "labels", of labels or a mask; "prompt_tokens", of a prompt; "tokens" that are summed: trained ones alone; their "sum". A row's numbers
 * don't depend on the rows beside it. *out_lines is the caller's, for sg_free; its bytes in *out_len, or NULL.
 */
SG_API sg_status sg_model_score(sg_model *model, const char *rows, size_t len, char **out_lines, size_t *out_len);

/* Up to max_tokens ids that go on from ids; ends before an end-of-text token. *out_ids is the caller's, for sg_free. */
SG_API sg_status sg_model_generate(sg_model *model, const int32_t *ids, size_t num, int64_t max_tokens, const sg_sampling *sampling,
                                   int32_t **out_ids, size_t *out_num);

/* How sg_model_generate_rows generates. Of fields that are 0 or NULL the comment says what they stand for. */
typedef struct sg_generation {
    size_t             size; /* sizeof(sg_generation), so that later versions may add fields */
    sg_sampling        sampling;
    double             min_p;                               /* of the likeliest token's probability; 0: all tokens */
    double             repetition_penalty;                  /* 0 or 1: none */
    double             presence_penalty, frequency_penalty; /* -2 to 2; 0: none */
    const int32_t     *bias_ids;                            /* scores of these tokens get biases added; -INFINITY: never chosen */
    const float       *biases;
    size_t             num_biases;
    const char *const *stops; /* texts that end a text, and aren't part of it */
    size_t             num_stops;
    int64_t            max_tokens;   /* 0: 128 */
    int64_t            n;            /* samples of each prompt; 0: 1 */
    int64_t            rows;         /* texts that are made at once; 0: 16 on a CPU, 64 on a GPU */
    int32_t            top_logprobs; /* with logprobs: those of so many of the likeliest tokens too, at most 20 */
    bool               logprobs;
    bool               ignore_eos; /* a text goes on after an end-of-text token */
    bool               skip_bad;   /* a bad row gets {"index", "error"}, and the others are done */
    /* PEFT folders over the model, which has none of its own, and their names: a row's "adapter" says which it has; null or none: the
     * model alone. They are read again by each call. */
    const char *const *adapter_names, *const *adapter_dirs;
    size_t num_adapters;
} sg_generation;

/* Texts of many prompts. rows: JSON Lines of {"prompt"}, {"messages"} (perhaps "tools") or {"ids"}, and perhaps "id", "adapter" and
 * "max_tokens". A line of JSON a sample, in the order of rows and samples: "index" of the row, from 0; "sample", its number; "id"; "text",
 * null without a tokenizer; "ids"; "stop_reason": eos, stop, length or context; with logprobs "logprobs", of each token {"id", "logprob",
 * "top"}. A sample depends on its prompt, its index and number, and the settings. Memory and programs stay for the next call, which takes
 * them if they do for it. *out_lines is the caller's, for sg_free; its bytes in *out_len, or NULL. */
SG_API sg_status sg_model_generate_rows(sg_model *model, const char *rows, size_t len, const sg_generation *settings, char **out_lines,
                                        size_t *out_len);

/* ---- ids of hidden states ---- */

typedef struct sg_head_decoder sg_head_decoder;

typedef enum sg_dtype { SG_F32, SG_F16, SG_BF16, SG_I8 } sg_dtype;
typedef enum sg_strategy { SG_GREEDY, SG_TEMPERATURE, SG_TOP_K, SG_TOP_P } sg_strategy;

/* A matrix of vocab rows and dim columns. */
typedef struct sg_matrix {
    const void  *data;
    sg_dtype     dtype;
    bool         by_columns; /* a column's numbers lie side by side; else a row's */
    bool         on_device;  /* in memory of the decoder's GPU, of several the first; else of the host */
    const float *scale;      /* of SG_I8: what each row is multiplied by, vocab of them, on the host; else NULL */
} sg_matrix;

typedef struct sg_head_options {
    int64_t     vocab, dim;
    int64_t     max_rows; /* of a batch */
    sg_dtype    dtype; /* that the matrix is kept in: its own, or what its numbers are rounded to; SG_I8: 8 bits and a scale for each row */
    const char *device;  /* "auto" (or NULL), "cpu" or "cuda"; or several that divide the matrix by rows: "cuda:0,1" */
    int         gpu;     /* which, from 0 */
    int         threads; /* of the CPU; 0: all cores */
    sg_strategy strategy;
    double      temperature; /* above 0; SG_GREEDY reads it not */
    int64_t     top_k;       /* of SG_TOP_K */
    double      top_p;       /* of SG_TOP_P */
    uint64_t    seed;
    const float *bias; /* vocab numbers on the host that are added to a row's logits; NULL: none */
} sg_head_options;

/* The last step of decoding over a bare matrix: logits = hidden matrix^T + bias, of which an id is chosen. The matrix is copied. A row's id
 * depends on its hidden state, the seed, the number of the batch and the row's place in it, never on other rows. */
SG_API sg_status sg_head_decoder_open(const sg_head_options *options, const sg_matrix *matrix, sg_head_decoder **out_decoder);
SG_API void      sg_head_decoder_close(sg_head_decoder *decoder); /* NULL is fine */

typedef struct sg_head_info {
    int64_t     device_bytes; /* what the decoder allocated, the matrix and all */
    const char *device;       /* "cpu" or "cuda"; valid until sg_head_decoder_close */
    void       *stream;  /* the cudaStream_t that batches are read on: what makes an array on the device comes before it; NULL: the CPU */
    int64_t     batches; /* queued so far */
    int64_t     waiting; /* rows of the oldest batch whose result wasn't asked for; 0: there is none */
} sg_head_info;
SG_API sg_status sg_head_decoder_get_info(sg_head_decoder *decoder, sg_head_info *out_info);

/* Queues a batch and returns: (rows, dim) numbers of SG_F32, SG_F16 or SG_BF16, on the host, or (on_device) in memory of the decoder's GPU,
 * which stays as it is until the result is there. Two at most wait for theirs. */
SG_API sg_status sg_head_decoder_decode_later(sg_head_decoder *decoder, const void *hidden, sg_dtype dtype, bool on_device, int64_t rows);
/* Awaits the oldest queued batch: an id for each of its rows. SG_INVALID where a row has none, as its logits are no numbers: its id is
 * negative, those of the other rows are right. */
SG_API sg_status sg_head_decoder_result(sg_head_decoder *decoder, int32_t *ids, int64_t rows);

#ifdef __cplusplus
}
#endif
#endif
