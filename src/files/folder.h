/* A folder that appears whole: it is written under a hidden name and gets its own at the end, so that a command that is refused or killed
 * leaves nothing that looks finished, and can be run again. */
#pragma once

#include "base/arena.h"
#include "base/status.h"

typedef struct FolderWriter {
    const char *path;    /* as it was asked for */
    const char *partial; /* where to write */
    bool        is_there;
    int         lock;
} FolderWriter;

/* An empty folder out->partial: beside `path`, or in it where `path` is there already. Files that an earlier writer left in it are removed.
 * ERR_INVALID while another process writes there. `arena` outlives the writer. */
NODISCARD Status folder_begin(Arena *arena, const char *path, FolderWriter *out);

/* Gives the folder its name. In one that was there files are replaced one by one, the file `last` at the end. */
NODISCARD Status folder_finish(FolderWriter *writer, const char *last);

/* Makes a folder that isn't there yet: `make` writes into the empty folder that it is told, and the file `last` appears last. Of several
 * processes or threads one does; the others wait for it, which `waiting` says. */
NODISCARD Status folder_make_once(Arena *arena, const char *folder, const char *last, const char *waiting,
                                  Status (*make)(void *context, const char *partial), void *context);

/* Removes the files that were written; returns `status`, with its message naming the folder as it was asked for. */
Status folder_abandon(FolderWriter *writer, Status status);
