module {
  func.func @main(%arg0: tensor<?xi64, #dhlo.shape<["n"]>>) -> (tensor<?xi64, #dhlo.shape<["u0"]>>, tensor<?xi64, #dhlo.shape<["n"]>>, tensor<?xi64, #dhlo.shape<["u0"]>>, tensor<?x1xi64, #dhlo.shape<["u1", "1"]>>) {
    %0 = "dhlo.find_unique"(%arg0) {symbol = "u0"} : (tensor<?xi64, #dhlo.shape<["n"]>>) -> tensor<?xi64, #dhlo.shape<["n"]>>
    %1:2 = "dhlo.fill_unique"(%arg0, %0) {number = "u0"} : (tensor<?xi64, #dhlo.shape<["n"]>>, tensor<?xi64, #dhlo.shape<["n"]>>) -> (tensor<?xi64, #dhlo.shape<["u0"]>>, tensor<?xi64, #dhlo.shape<["u0"]>>)
    "dhlo.count_nonzero"(%arg0) {symbol = "u1"} : (tensor<?xi64, #dhlo.shape<["n"]>>) -> ()
    %2 = "dhlo.fill_nonzero"(%arg0) {number = "u1"} : (tensor<?xi64, #dhlo.shape<["n"]>>) -> tensor<?x1xi64, #dhlo.shape<["u1", "1"]>>
    return %1#0, %0, %1#1, %2 : tensor<?xi64, #dhlo.shape<["u0"]>>, tensor<?xi64, #dhlo.shape<["n"]>>, tensor<?xi64, #dhlo.shape<["u0"]>>, tensor<?x1xi64, #dhlo.shape<["u1", "1"]>>
  }
}
