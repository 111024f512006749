/* Shared by the files that write GGUF. */
#pragma once

#include "files/gguf.h"
#include "model/gguf_export.h"

enum {
    GGUF_PERMUTES = 1,      /* rows of q and k are permuted: rows that rotate together are neighbours */
    GGUF_FACTORS = 2,       /* the file may have rope_freqs: one factor for each rotary pair */
    GGUF_LONG = 4,          /* the file may have rope_factors_short and rope_factors_long */
    GGUF_NORMS_ADD_ONE = 8, /* norms multiply by 1 + weight; the file stores that sum */
    GGUF_WINDOWS = 16,      /* some layers have a sliding window, in a periodic pattern */
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
const GgufFamily *gguf_family_of(Str written); /* the family with this name in GGUF files; NULL: none */

/* A rule that cuts text into words, and its name (gguf_pre.def). */
typedef struct GgufPre {
    bool        digits;
    const char *pattern;
    bool        ignore_merges;
    const char *name;
} GgufPre;
const GgufPre *gguf_pre_at(int index); /* NULL: index is past the last */

typedef enum GgufRole {
    GGUF_EMBEDDING,
    GGUF_HEAD,
    GGUF_NORM, /* also the matrix of positions, which is stored as norms are */
    GGUF_BIAS,
    GGUF_Q,
    GGUF_K,
    GGUF_V,
    GGUF_QKV,
    GGUF_DOWN,
    GGUF_MATRIX, /* any other matrix */
} GgufRole;

/* Where a tensor of the folder belongs in the file: its name, role and layer there. */
typedef struct GgufPlace {
    const char *name; /* name in the file, in the arena */
    GgufRole    role;
    int         layer; /* -1: it is in no layer */
} GgufPlace;

/* ERR_UNSUPPORTED: no row of gguf_tensors.def fits. */
NODISCARD Status gguf_place(Arena *arena, const GgufFamily *family, const char *tensor, GgufPlace *out);

/* A number of the model's config. If its family doesn't have it, that is a bug of this program. */
double gguf_dim(const HfModel *model, const char *name);

/* The folder's row of q or k that becomes row `row` of the file. Heads have `width` rows. */
int64_t gguf_permuted_row(int64_t row, int64_t width);

/* A tensor made from config.json: rotary factors, fp32. */
typedef struct GgufFactors {
    const char *name;
    int64_t     count;
    float      *values;
} GgufFactors;
enum { GGUF_MOST_FACTORS = 2 };

/* Puts the hyper-parameters, and makes the tensors that belong to them, in `arena`. */
NODISCARD Status gguf_put_model_keys(Arena *arena, const HfModel *model, const GgufFamily *family, GgufKeys *keys,
                                     GgufFactors factors[GGUF_MOST_FACTORS], int *out_num_factors);

/* Puts the keys of the tokenizer and chat templates of the model's folder, and general.name. This is `name`, or another name if llama.cpp
 * couldn't open a file with `name` there. A folder without a tokenizer is noted. dir: what messages call the folder. */
NODISCARD Status gguf_put_tokenizer(Arena *arena, const HfModel *model, const char *dir, const char *name, GgufKeys *keys);
