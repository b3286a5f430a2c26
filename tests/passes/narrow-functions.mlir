!b = tensor<?x4xbf16, #dhlo.shape<["n", "4"]>>
!h = tensor<?x4xf16, #dhlo.shape<["n", "4"]>>
!f = tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
module {
  // Short become SiLU, a gate of two readers, and a sigmoid of bf16. The others stay: read by a sum, read in f32, and given in f32.
  func.func @main(%x: !b, %y: !h) -> (!b, !h, !b, !b, !b, !f, !f) {
    %xf = "dhlo.convert"(%x) : (!b) -> !f
    %a = "dhlo.sigmoid"(%xf) : (!f) -> !f
    %am = "dhlo.mul"(%xf, %a) : (!f, !f) -> !f
    %ar = "dhlo.convert"(%am) : (!f) -> !b
    %yf = "dhlo.convert"(%y) : (!h) -> !f
    %c = "dhlo.sigmoid"(%yf) : (!f) -> !f
    %cm = "dhlo.mul"(%c, %xf) : (!f, !f) -> !f
    %cn = "dhlo.mul"(%cm, %yf) : (!f, !f) -> !f
    %cr = "dhlo.convert"(%cn) : (!f) -> !h
    %cs = "dhlo.convert"(%c) : (!f) -> !b
    %d = "dhlo.sigmoid"(%x) : (!b) -> !b
    %s = "dhlo.sigmoid"(%xf) : (!f) -> !f
    %sm = "dhlo.sub"(%xf, %s) : (!f, !f) -> !f
    %sr = "dhlo.convert"(%sm) : (!f) -> !b
    %g = "dhlo.sigmoid"(%yf) : (!f) -> !f
    %gm = "dhlo.mul"(%g, %yf) : (!f, !f) -> !f
    %gr = "dhlo.sqrt"(%gm) : (!f) -> !f
    %e = "dhlo.sigmoid"(%sm) : (!f) -> !f
    return %ar, %cr, %cs, %d, %sr, %gr, %e : !b, !h, !b, !b, !b, !f, !f
  }
}
