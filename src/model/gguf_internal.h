/* Shared by the files that write GGUF. */
#pragma once

#include "files/gguf.h"
#include "model/gguf_export.h"

enum {
    GGUF_PERMUTES = 1,      /* rows of q and k: pairs that rotate together stand side by side */
    GGUF_FACTORS = 2,       /* rope_freqs: a factor for each pair */
    GGUF_LONG = 4,          /* rope_factors_short and rope_factors_long */
    GGUF_NORMS_ADD_ONE = 8, /* norms multiply by 1 + weight, and the file has the sum */
    GGUF_WINDOWS = 16,      /* layers of a period have a sliding window */
    GGUF_NO_ROPE = 32,
};

typedef enum GgufFamilyId {
#define GGUF_FAMILY(name, architecture, written, traits) GGUF_FAMILY_##name,
#include "model/gguf_families.def"
#undef GGUF_FAMILY
    GGUF_NUM_FAMILIES
} GgufFamilyId;

typedef struct GgufFamily {
    GgufFamilyId id;
    const char  *architecture, *written;
    unsigned     traits;
} GgufFamily;

NODISCARD Status  gguf_find_family(const HfModel *model, const GgufFamily **out);
const GgufFamily *gguf_family_of(Str written); /* by its name in files; NULL: none */

/* A rule that cuts words, and its name (gguf_pre.def). */
typedef struct GgufPre {
    bool        digits;
    const char *pattern;
    bool        ignore_merges;
    const char *name;
} GgufPre;
const GgufPre *gguf_pre_at(int index); /* NULL: behind the last */

typedef enum GgufRole {
    GGUF_EMBEDDING,
    GGUF_HEAD,
    GGUF_NORM, /* and positions */
    GGUF_BIAS,
    GGUF_Q,
    GGUF_K,
    GGUF_V,
    GGUF_QKV,
    GGUF_DOWN,
    GGUF_MATRIX, /* any other */
} GgufRole;

/* Where a tensor of the folder stands in the file. */
typedef struct GgufPlace {
    const char *name; /* in the arena */
    GgufRole    role;
    int         layer; /* -1: none */
} GgufPlace;

/* ERR_UNSUPPORTED: no row of gguf_tensors.def fits. */
NODISCARD Status gguf_place(Arena *arena, const GgufFamily *family, const char *tensor, GgufPlace *out);

/* A number of the model's config, which its family has; else our bug. */
double gguf_dim(const HfModel *model, const char *name);

/* Row `row` of the file's q or k as it stands in the folder's: heads of `width` rows. */
int64_t gguf_permuted_row(int64_t row, int64_t width);

/* Tensors that are made of config.json: rotary factors, fp32. */
typedef struct GgufFactors {
    const char *name;
    int64_t     count;
    float      *values;
} GgufFactors;
enum { GGUF_MOST_FACTORS = 2 };

/* The hyper-parameters, and the tensors that belong to them, in `arena`. */
NODISCARD Status gguf_put_model_keys(Arena *arena, const HfModel *model, const GgufFamily *family, GgufKeys *keys,
                                     GgufFactors factors[GGUF_MOST_FACTORS], int *out_num_factors);

/* The tokenizer of the model's folder with its chat templates, and general.name: `name`, unless llama.cpp couldn't open a file of that
 * name. A folder without tokenizer: a note. Messages call it `dir`. */
NODISCARD Status gguf_put_tokenizer(Arena *arena, const HfModel *model, const char *dir, const char *name, GgufKeys *keys);
