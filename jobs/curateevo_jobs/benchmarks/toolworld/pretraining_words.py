"""The word stock of the pretraining text. With the world it shares single words, and no more."""

from __future__ import annotations

from curateevo_jobs.benchmarks.toolworld.values import word_list

NAME_FAMILIES = (
    (
        word_list("get set convert find refund cancel send page buy check ship open move read lift draw"),
        word_list(
            "table window garden letter picture engine river song ticket bottle lesson mirror "
            "farm bridge candle basket carpet coin drum field glove hammer jacket ladder"
        ),
    ),
    (
        word_list("paint close clean fold push sort mark wash join cut mix hold turn guard plant press"),
        word_list(
            "weather timer money order message person item stock parcel account paper light "
            "wheel leaf stone button circle corner dinner flower forest planet rocket signal"
        ),
    ),
)
"""Verbs and nouns of made-up tools: names are made within a family."""

OTHER_CITIES = word_list(
    "Milan Zurich Hanoi Dakar Accra Leeds Turin Osaka Dallas Denver Munich Geneva Naples Riga Tunis Bergen"
)
OTHER_PEOPLE = word_list("Amy Ben Cleo Dave Ella Fred Gus Hank Ivan Jill Kurt Lars Mike Nina Omar Pete")
STRANGERS = {"city": OTHER_CITIES, "customer": OTHER_PEOPLE}

FILLERS = word_list(
    "What is it like outside in Is raining today Tell me the forecast for How warm now Do I need an "
    "umbrella Will be cold Wake minutes Start a minute Remind after Count down Give then ring Ring bell "
    "Change dollars into much bucks have what that please do make Swap wants cash back payment Return to "
    "Please Pay Undo of changed her mind stop delivery Call off wanted Drop purchase does not want "
    "anymore Stop everything Take list about Let know Write on Inform regarding should hear news Get We "
    "them Purchase units Bring more fetch Add basket any left Are we out many are there Look shelf "
    "available Can still sell Deliver Post box with must go Dispatch over waiting Log Unlock access needs "
    "again Sign profile forgot how enter Thanks was lovely my new and old friends Good morning from My "
    "blue says hello Hi Okay One thing Thank you Cheers Hello Well but if our his they she he who where "
    "why here very some all two reimburse countdown green small big fast slow maybe soon later never "
    "always Every This That These under near"
)
NONSENSE = word_list(
    "zib vop krel nuf daxi wog pleb tirn qua yeb smo hulp frem gizz jask lorv mip naxo orb pilk "
    "rund skiv tulm uzz vemp wick xan yolt zent brask"
)
RESULT_WORDS = word_list(
    "ok error order got id left code pin none notes Done Noted only offline first number parse tool"
)
