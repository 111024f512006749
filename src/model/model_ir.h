/* Where the IR of a model folder comes from. The first of these that exists is used: the file that the run names; surogate_ir.json in the
 * folder; a file in the folder that SUROGATE_MODELS names; a shipped one. All are data, except a Python file that the run names: it is run
 * if the command line allows it. */
#pragma once

#include "ir/module.h"

/* The IR file that a run names. */
typedef struct NamedIr {
    const char *file;       /* NULL: the run names none */
    bool        may_be_run; /* whether a Python file may be run */
    const char *key, *kind; /* key: the run file's key that names `file` (ir, objective); kind: what the file defines (model, objective) */
} NamedIr;

/* config: the parsed config.json; the IR must be of its architecture. */
NODISCARD Status model_ir_find(Arena *arena, const char *dir, const JsonValue *config, const char *config_name, NamedIr ir,
                               IrModule **out_module);
/* Reads the objective that a run names; ir.file isn't NULL. */
NODISCARD Status model_ir_objective(Arena *arena, NamedIr ir, IrModule **out_module);
void             model_ir_tell_objective(const IrModule *objective, StrBuf *notes);
bool             model_ir_is_shipped(const IrModule *module);
/* Notes which file the IR is from, with its SHA-256. Notes nothing for a shipped one. */
void model_ir_tell(const IrModule *module, StrBuf *notes);
/* Writes surogate_ir.json into `folder`. Writes nothing for a shipped one. */
NODISCARD Status model_ir_write(const IrModule *module, const char *folder);
