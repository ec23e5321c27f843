"""Lists the words that the rules of `rewriting` exchange, chosen for texts of documentation."""

from __future__ import annotations


def _both_ways(text: str) -> dict[str, str]:
    pairs = [entry.split("=") for entry in text.split()]
    return {one: other for pair in pairs for one, other in (pair, pair[::-1])}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


SYNONYMS = _both_ways("""
return=yield returns=yields returned=yielded create=make creates=makes created=made
compute=calculate computes=calculates get=obtain gets=obtains convert=transform converts=transforms
check=verify delete=erase given=specified function=routine functions=routines method=procedure
error=fault string=text strings=texts use=employ uses=employs used=employed using=employing
only=solely because=since each=every call=invoke calls=invokes called=invoked contains=holds
contain=hold allows=permits allow=permit raise=throw raises=throws element=item elements=items
argument=parameter arguments=parameters provides=offers need=require needs=requires generate=produce
find=locate modify=change corresponding=matching update=refresh updates=refreshes selected=chosen
result=outcome results=outcomes dictionary=mapping determine=decide multiple=many default=standard
object=entity
""")
OPPOSITES = _both_ways("""
enabled=disabled enable=disable True=False first=last before=after minimum=maximum min=max
input=output inputs=outputs open=close add=remove added=removed start=end top=bottom left=right
increase=decrease upper=lower positive=negative internal=external load=save include=exclude
includes=excludes including=excluding valid=invalid always=never with=without least=most
greater=smaller same=different previous=next parent=child row=column rows=columns source=target
inside=outside old=new push=pop single=double read=write reads=writes key=value keys=values
empty=full any=no supported=unsupported high=low up=down
""")
ARTICLES = _words("the a an")
AUXILIARIES = _words("is are was were can will should must may does could would")
DIRECTIONS = _words("of to from into in on by than under over for as with")
FUNCTION_WORDS = (
    ARTICLES
    | AUXILIARIES
    | DIRECTIONS
    | _words("and or not that this these it its be which at no all any each you we they")
)
