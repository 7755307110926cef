/* A curve in one line. */
#include <math.h>

#include "agent/launch/view/view.h"

/* The mean of the numbers among values[first, end); NAN: there are none. */
static double mean_of(const double *values, uint32_t first, uint32_t end)
{
    double sum = 0;
    uint32_t n = 0;
    for (uint32_t i = first; i < end; i++) {
        if (isfinite(values[i])) {
            sum += values[i];
            n++;
        }
    }
    return n ? sum / n : NAN;
}

void view_sparkline(struct text *out, const double *values, uint32_t n, uint32_t columns, bool utf8)
{
    static const char *const blocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    static const char marks[] = ".:-=+*#";
    uint32_t cells = n < columns ? n : columns;
    double low = INFINITY, high = -INFINITY;
    for (uint32_t pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < cells; i++) {
            uint32_t first = (uint32_t)((uint64_t)n * i / cells), end = (uint32_t)((uint64_t)n * (i + 1) / cells);
            double mean = mean_of(values, first, end);
            if (pass == 0) {
                low = isfinite(mean) && mean < low ? mean : low;
                high = isfinite(mean) && mean > high ? mean : high;
                continue;
            }
            double share = high > low ? (mean / 2 - low / 2) / (high / 2 - low / 2) : 0.5;
            if (!isfinite(mean))
                text_add(out, " ");
            else if (utf8)
                text_add(out, "%s", blocks[(uint32_t)(share * 7 + 0.5)]);
            else
                text_add(out, "%c", marks[(uint32_t)(share * 6 + 0.5)]);
        }
    }
}
