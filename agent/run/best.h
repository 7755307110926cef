/* best.weights: the parameters of the best evaluation of a run, and the result of that evaluation.
 *
 * The file belongs to the process that evaluates: the evaluator, or replay-single; after the evaluator has ended, the
 * launcher. It is written before the evaluation is reported, so a reader of the report finds the parameters. It is
 * replaced as a whole, and is the only record of the best evaluation: a restarted evaluator continues from it. */
#pragma once

#include <stdbool.h>

#include "agent/learn/weights.h"

/* In the run's folder. */
#define BEST_WEIGHTS_FILE "best.weights"

/* The evaluation of the parameters in a file. */
struct best {
    double value; /* mean return */
    uint64_t episodes;
    uint64_t environment_steps; /* steps of all actors when the evaluation was made */
    uint64_t learner_steps;     /* steps of the learner when it made these parameters */
};

/* True if an evaluation replaces the best one. Of two equal ones the later counts: its parameters have learned for
 * longer. */
bool best_replaces(const struct best *fresh, const struct best *before);

/* RP_NOT_FOUND: the file does not exist. */
rp_status best_read(const char *path, struct best *out, rp_error *err);
/* Writes the tensors of another file (a policy's, or a learner's whole state) and the evaluation; atomic, as
 * weights_write_file. */
rp_status best_write_from(const char *path, const char *source, const struct best *best, rp_error *err);

/* A file that follows the evaluations of one process. */
struct best_file {
    char path[512]; /* empty: no file is kept */
    bool known;     /* best has the evaluation in the file */
    struct best best;
};

/* folder: of the run; NULL or "": no file is kept. fresh: an existing file is removed. A file that cannot be read is
 * logged, and the next evaluation replaces it. */
void best_file_open(struct best_file *self, const char *folder, bool fresh);
/* Call after an evaluation, before it is reported. A failing disk is logged, and the next evaluation that is as good
 * tries again. */
void best_file_offer(struct best_file *self, const struct tensor *tensors, uint32_t n, const struct best *fresh);
