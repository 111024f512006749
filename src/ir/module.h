/* IrModule: JSON IR (docs/ir.md) of a family of models or of an objective. A family is a template with repeat, if and symbolic dims that
 * `bind` instantiates for one config.json. An objective computes a loss from a model's outputs. */
#pragma once

#include "base/json.h"
#include "ir/graph.h"

enum { IR_MOST_INPUTS = FEED_MOST_OWN, IR_MOST_NAMESPACES = 4 };

typedef struct IrModule IrModule;

/* A second model, frozen. An objective reads its outputs with its name as prefix: teacher.logits. */
typedef struct IrNamespace {
    const char      *name;
    const IrModule  *module;
    const JsonValue *config;
    const char      *config_name;
} IrNamespace;

struct IrModule {
    const char *file; /* for errors */
    const char *text; /* the JSON, in which messages count lines */
    size_t      len;
    const char *architecture;           /* such as Qwen3ForCausalLM; NULL: it is an objective */
    OwnInput    inputs[IR_MOST_INPUTS]; /* inputs of its own, beside those the engine provides */
    int         num_inputs;
    JsonValue   root;

    /* Added to a model for one run (ir_module_link). */
    const IrModule *objective; /* NULL: the model's own losses, or the shipped objective `sft` */
    IrNamespace     namespaces[IR_MOST_NAMESPACES];
    int             num_namespaces;
};

enum { IR_MAX_BYTES = 16 << 20 };

/* Parses and checks version and layout; statements are checked when bound. text (at most IR_MAX_BYTES) must outlive the
 * module. */
NODISCARD Status ir_module_parse(Arena *arena, const char *file, const char *text, size_t len, IrModule **out_module);
NODISCARD Status ir_objective_parse(Arena *arena, const char *file, const char *text, size_t len, IrModule **out_module);

/* A copy of `model` with an objective (NULL: none), its namespaces, and the inputs of both modules. All modules are borrowed. */
NODISCARD Status ir_module_link(Arena *arena, const IrModule *model, const IrModule *objective, const IrNamespace *namespaces,
                                int num_namespaces, IrModule **out_module);

/* The module that declares an own input of that name, the objective or the model itself; NULL: neither does. */
const IrModule *ir_module_declaring(const IrModule *module, const char *input);

/* Text of the shipped module of an architecture, or NULL. Shipped modules are compiled into the program from models/ *.json. */
const char *ir_shipped_module(const char *architecture, size_t *out_len);
/* The shipped objective: mean cross entropy of the labels over the trained tokens (models/objectives/sft.json). */
NODISCARD Status ir_shipped_objective(Arena *arena, IrModule **out_module);
/* Names of the shipped architectures, NULL-terminated. */
const char *const *ir_shipped_architectures(void);

/* A symbol's value: a number or a list of numbers. */
typedef struct IrSymbol {
    const char *name;
    const char *key;    /* its key in config.json: the spelling found there, else the first */
    const char *unused; /* why a value other than 0 has no effect; NULL: it has an effect */
    double      value;
    int64_t     count; /* length of `list`; 0: one number, in `value` */
    double     *list;
} IrSymbol;

/* The symbols of one model. */
typedef struct IrDims {
    int       num;
    int64_t   num_listed; /* entries of all lists together */
    IrSymbol *symbols;
} IrDims;

/* *out: the number of that name; false: there is none. */
bool ir_dims_get(const IrDims *dims, const char *name, double *out);
/* *out: the number of that name, or entry *index of the list of that name. It is the ExprLookup of expressions over these symbols. */
NODISCARD Status ir_dims_at(const IrDims *dims, const char *name, const double *index, double *out);

/* Evaluates the module's `config` section against a config.json: every symbol, every requirement. Errors name the key. */
NODISCARD Status ir_module_dims(Arena *arena, const IrModule *module, const JsonValue *config, const char *config_name, IrDims *out);

typedef struct BindOptions {
    const char         *graph_name;
    int64_t             batch, seq; /* symbols B and T */
    int64_t             max_len;    /* symbol P: positions the rotary table covers */
    int64_t             reach;      /* symbol reach: tokens of the longest row trained or evaluated, else of the KV cache */
    DType               dtype;      /* dtype of parameters and activations */
    const OpDef *const *ops;
    int                 num_ops;
    int64_t             max_layers; /* an outermost repeat of the model itself runs at most this many times; 0: no limit */
    int64_t             max_work;   /* units of work (bind_spend) before the module is refused; 0: IR_MAX_WORK */
} BindOptions;

/* Much more than any model needs: 100 layers of 128 experts need a tenth of it. */
#define IR_MAX_WORK ((int64_t)1 << 22)

/* Meanings of a model's symbols that the engine asks for. */
typedef enum IrRole {
    IR_ROLE_VOCABULARY, /* size of the vocabulary */
    IR_ROLE_POSITIONS,  /* the longest sequence it was made for */
    IR_ROLE_TIED,       /* whether the output head is the embedding */
    IR_ROLE_COUNT
} IrRole;
/* *out: the symbol of `dims` that the module's "roles" name for the role; NULL: they name none. */
NODISCARD Status ir_module_role(const IrModule *module, const IrDims *dims, IrRole role, const IrSymbol **out);

/* Whether a tensor of a model folder carries no weight: its name ends in one of the module's "unread" texts. */
bool ir_module_is_unread(const IrModule *module, const char *tensor);

/* The module's "prefix", which may be missing in front of all tensor names of a model folder; NULL: there is none. */
const char *ir_module_prefix(const IrModule *module);

/* Instantiates the template of the model alone, without objective or namespaces: a Graph with inputs, parameters, nodes and outputs,
 * every shape checked. */
NODISCARD Status ir_module_bind(Arena *arena, const IrModule *module, const JsonValue *config, const char *config_name,
                                const BindOptions *options, Graph **out_graph);

/* ir_module_bind for a program that computes the output `want`. If the model has no output of that name, this also binds its objective
 * to its outputs, and the namespaces that the objective reads. */
NODISCARD Status ir_program_bind(Arena *arena, const IrModule *module, const JsonValue *config, const char *config_name,
                                 const BindOptions *options, const char *want, Graph **out_graph);
