#!/bin/sh
# The demo runs, shows a line of rates per second, holds the ratio, and ends well.
set -eu
out=$("$RP_DEMO" 2)
echo "$out"
echo "$out" | grep -q '^ *2s ' || exit 1
echo "$out" | grep -q 'every process ended well' || exit 1
