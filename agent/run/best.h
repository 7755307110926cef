/* best.weights: the parameters of the best evaluation of a run, with what that evaluation gave.
 *
 * The file belongs to whoever evaluates: the evaluator, or replay-single; after the evaluator has ended, the launcher. It is
 * written before the evaluation is reported, so whoever reads of a return finds the parameters that gave it. It is replaced
 * as a whole, and its own record is the only one: an evaluator that starts again goes on from it. */
#ifndef AGENT_RUN_BEST_H
#define AGENT_RUN_BEST_H

#include <stdbool.h>

#include "agent/net/weights.h"

/* In the run's folder. */
#define BEST_WEIGHTS_FILE "best.weights"

/* The evaluation that the parameters of a file gave. */
struct best {
    double value; /* mean return */
    uint64_t episodes;
    uint64_t environment_steps; /* of all actors, when the evaluation was made */
    uint64_t learner_steps;     /* of the learner, when it made these parameters */
};

/* Whether an evaluation replaces the best one. Of equal ones the later counts: its parameters have learned for longer. */
bool best_replaces(const struct best *fresh, const struct best *before);

/* RP_NOT_FOUND: there is no such file. */
rp_status best_read(const char *path, struct best *out, rp_error *err);
/* The tensors (a policy's, or a learner's whole state) with the evaluation behind them; atomic, as weights_write_file. */
rp_status best_write(const char *path, const struct tensor *tensors, uint32_t n, const struct best *best,
                     rp_error *err);
/* The same with the tensors of another file. */
rp_status best_write_from(const char *path, const char *source, const struct best *best, rp_error *err);

/* A file that follows the evaluations of one process. */
struct best_file {
    char path[512]; /* empty: none is kept */
    bool known;     /* best is what the file says */
    struct best best;
};

/* folder: of the run; NULL or "": none is kept. fresh: a file that is there is removed. A file that cannot be read is
 * told of, and the next evaluation replaces it. */
void best_file_open(struct best_file *self, const char *folder, bool fresh);
/* After an evaluation, before it is reported. A disk that fails is told of, and the next evaluation that is as good tries
 * again. */
void best_file_offer(struct best_file *self, const struct tensor *tensors, uint32_t n, const struct best *fresh);

#endif
